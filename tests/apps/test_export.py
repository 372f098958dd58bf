"""`octavo export`: what a tiny run of speech writes for transformers and NeMo, and what it refuses. Which
precision weights have is in tests/train/files_weights_test.cc."""

import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "speech"))
BINARY = os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
TRAINER = pathlib.Path(BINARY).with_name("octavo-trainer")
pytestmark = pytest.mark.skipif(not TRAINER.exists(), reason="this build has no octavo-trainer (LibTorch)")

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
import test_speech_archives as archives  # noqa: E402

# Of a folder for transformers, of a model without a tokenizer.
FILES = ["config.json", "model.safetensors", "preprocessor_config.json"]
SIZES = """\
  vocab_size: 6
  encoder: {feat_in: 16, subsampling_conv_channels: 4, n_layers: 2, d_model: 16, n_heads: 2}
  decoder: {pred_hidden: 16, pred_rnn_layers: 2}
  joint: {joint_hidden: 16}
"""
RUN = """\
task: speech
model:
  name: {name}
{sizes}data:
  generator: {{clips: 8, validation_clips: 2, seconds: 0.64, tokens: 3}}
  dataloader_num_workers: 0
training:
  optimizer: adamw_8bit
  compute_dtype: {dtype}
  per_device_train_batch_size: 2
  max_steps: 2
  save_steps: 1
  eval_steps: {eval}
  device: cpu
output_dir: run
"""


def octavo(folder, *words, code=0):
    done = subprocess.run(
        [BINARY, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def train(folder, name="fastconformer", sizes=SIZES, dtype="float32", evaluations="null", words=()):
    text = RUN.format(name=name, sizes=sizes, dtype=dtype, eval=evaluations)
    (folder / "run.yaml").write_text(text)
    octavo(folder, "train", "run.yaml", *words)
    return folder


@pytest.fixture(scope="module")
def random_run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("random"), evaluations="1")


def weights_of(folder, step):
    return safetensors.load_file(folder / "run" / f"checkpoint-{step}" / "model.safetensors")


def test_a_folder_that_transformers_loads(random_run):
    said = octavo(random_run, "export", "run", "hf/")
    assert said == "hf: the weights of run/checkpoint-2 in float32\n"
    assert sorted(p.name for p in (random_run / "hf").iterdir()) == FILES
    archives.assert_same(
        safetensors.load_file(random_run / "hf" / "model.safetensors"), weights_of(random_run, 2)
    )
    config = json.loads((random_run / "hf" / "config.json").read_text())
    assert (config["vocab_size"], config["dtype"]) == (7, "float32")
    # It begins another run, with the weights that this one ended with.
    assert "weights from" in octavo(
        random_run, "train", "run.yaml", "model.name=./hf", "model.encoder={}", "output_dir=second"
    )
    model = archives.load_in_transformers(random_run / "hf", "tdt")
    archives.assert_same(model.state_dict(), weights_of(random_run, 2))


def test_checkpoints_by_a_word(random_run):
    octavo(random_run, "export", "run", "first", "--checkpoint", "1")
    first = safetensors.load_file(random_run / "first" / "model.safetensors")
    archives.assert_same(first, weights_of(random_run, 1))
    assert "best by loss: " in octavo(random_run, "export", "run", "best", "--checkpoint", "best")
    octavo(random_run, "export", "run/checkpoint-2", "second-hf")
    said = octavo(random_run, "export", "run", "other", "--checkpoint", "5", code=2)
    assert "no checkpoint of step 5; its checkpoints are of step 2, 1" in said
    assert not (random_run / "other").exists()


def test_targets_that_are_there(random_run):
    target = random_run / "there"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    said = octavo(random_run, "export", "run", "there", code=2)
    assert "there: is there already; choose another name, or --force replaces it" in said
    assert [p.name for p in target.iterdir()] == ["notes.txt"]
    octavo(random_run, "export", "run", "there", "--force")
    assert sorted(p.name for p in target.iterdir()) == sorted([*FILES, "notes.txt"])
    for place in ("run", "run/checkpoint-2"):
        said = octavo(random_run, "export", "run", place, "--force", code=2)
        assert "is a run's folder or a checkpoint's" in said
    said = octavo(random_run, "export", "run", "run.yaml", "--force", code=2)
    assert "run.yaml: is there and not a folder" in said
    said = octavo(random_run, "export", "run", "none/hf", code=1)
    assert "none/" in said
    said = octavo(random_run, "export", "nowhere", "hf2", code=2)
    assert "nowhere: no checkpoint is there" in said


def test_random_weights_are_no_nemo(random_run):
    said = octavo(random_run, "export", "run", "model.nemo", code=2)
    assert "model.nemo: a .nemo archive needs a tokenizer, but there is none" in said
    assert not (random_run / "model.nemo").exists()


def test_a_nemo_archive_comes_back_trained(tmp_path):
    state = archives.nemo_state()
    files = archives.write_nemo(tmp_path / "theirs.nemo", state, archives.nemo_config())
    train(tmp_path, name="./theirs.nemo", sizes="", dtype="bfloat16", words=["master_weights=32"])
    stored = weights_of(tmp_path, 2)
    narrow = {name for name, tensor in stored.items() if tensor.dtype == torch.bfloat16}
    said = octavo(tmp_path, "export", "run", "ours.nemo")
    assert f"{len(narrow)} tensors were bfloat16, {len(narrow)} of them with master bits" in said
    with tarfile.open(tmp_path / "ours.nemo") as opened:
        written = {member.name: opened.extractfile(member).read() for member in opened.getmembers()}
    weights = torch.load(io.BytesIO(written.pop("./model_weights.ckpt")), weights_only=True)
    assert written == files
    assert {name: (t.dtype, t.shape) for name, t in weights.items()} == {
        name: (t.dtype, t.shape) for name, t in state.items()
    }
    name = "joint.joint_net.2.weight"
    assert "joint.head.weight" in narrow
    assert not torch.equal(weights[name], state[name])
    full, half = weights[name], stored["joint.head.weight"].float()
    assert not torch.equal(full, half)
    assert torch.allclose(full, half, rtol=2**-8, atol=0)
    fb = "preprocessor.featurizer.fb"
    assert torch.equal(weights[fb], state[fb])

    octavo(tmp_path, "export", "run", "hf")
    assert (tmp_path / "hf" / "0a_tokenizer.model").read_bytes() == files["./0a_tokenizer.model"]
    assert torch.equal(
        safetensors.load_file(tmp_path / "hf" / "model.safetensors")["joint.head.weight"], full
    )
    octavo(tmp_path, "export", "run", "ours.nemo", code=2)
    octavo(tmp_path, "export", "run", "ours.nemo", "--force", "--checkpoint", "1")
    (tmp_path / "theirs.nemo").rename(tmp_path / "moved.nemo")
    assert "theirs.nemo" in octavo(tmp_path, "export", "run", "hf2", code=2)


def test_text_has_no_other_format(tmp_path):
    (tmp_path / "text.txt").write_bytes(bytes(i * i % 251 for i in range(4000)))
    (tmp_path / "run.yaml").write_text(
        "model: {n_layer: 1, n_embd: 16, n_head: 2, mlp_internal_dim_multiplier: 4}\n"
        "data: {train: text.txt, block_size: 16, dataloader_num_workers: 0, max_eval_samples: 2}\n"
        "training: {compute_dtype: float32, per_device_train_batch_size: 2, max_steps: 1, sample_tokens: 0,\n"
        "           device: cpu}\n"
        "output_dir: run\n"
    )
    octavo(tmp_path, "train", "run.yaml")
    said = octavo(tmp_path, "export", "run", "out", code=1)
    assert "a model of the task text has no format of other programs" in said
    assert "run/checkpoint-1/model.safetensors" in said
    assert not (tmp_path / "out").exists()
