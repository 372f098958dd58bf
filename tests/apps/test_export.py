"""Tests `octavo export`: the files that it writes for transformers and NeMo from a tiny speech run, and
rejected arguments. The precision of the weights is tested in tests/train/files_weights_test.cc."""

import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import wave

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "speech"))
BINARY = os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
TRAINER = pathlib.Path(BINARY).with_name("octavo-trainer")
pytestmark = pytest.mark.skipif(not TRAINER.exists(), reason="this build has no octavo-trainer (LibTorch)")

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
import test_speech_archives as archives  # noqa: E402

# The files of an exported transformers folder for a transducer without a tokenizer.
FILES = ["config.json", "generation_config.json", "model.safetensors", "preprocessor_config.json"]
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
    # The folder starts another run with the final weights of this run.
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
    assert "nowhere: found no checkpoint" in said


def test_a_target_with_another_suffix_is_refused(random_run):
    said = octavo(random_run, "export", "run", "speech.onnx", code=2)
    assert "speech.onnx: models are not written as .onnx; expected a name that ends with .nemo" in said
    assert not (random_run / "speech.onnx").exists()


SPOKEN = """\
task: speech
model:
  name: fastconformer
  head: {head}
  tokenizer: {{dir: tokenizer}}
  preprocessor: {{features: 16}}
  encoder: {{feat_in: 16, subsampling_conv_channels: 4, n_layers: 2, d_model: 16, n_heads: 2}}
  decoder: {{pred_hidden: 16, pred_rnn_layers: 1}}
  joint: {{joint_hidden: 16}}
  loss: {{durations: [0, 1, 2]}}
data: {{train_manifest: clips.jsonl, val_manifest: clips.jsonl, dataloader_num_workers: 0}}
training: {{per_device_train_batch_size: 4, max_steps: 1, device: cpu, compute_dtype: float32}}
output_dir: run-{head}
"""


def write_clip(path, seconds, seed):
    samples = torch.randn(int(16000 * seconds), generator=torch.Generator().manual_seed(seed))
    swell = torch.linspace(0, 40 * seconds, len(samples)).sin()
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes((samples * swell * 3000).to(torch.int16).numpy().tobytes())


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """Makes recordings and a tokenizer; models of every head are trained on them for one step."""
    folder = tmp_path_factory.mktemp("spoken")
    lines = []
    for i in range(8):
        seconds = 0.9 + 0.35 * i
        write_clip(folder / f"{i}.wav", seconds, i)
        text = "three apples fall all over the small hill"[: 10 + 4 * i].strip()
        lines.append(json.dumps({"audio_filepath": f"{i}.wav", "duration": seconds, "text": text}) + "\n")
    (folder / "clips.jsonl").write_text("".join(lines))
    octavo(folder, "data", "make-tokenizer", "tokenizer", "clips.jsonl", "--vocab-size", "30")
    return folder


def vary(folder, head):
    """Randomizes the head's weights, so that frames of an untrained model have different tokens."""
    torch.manual_seed(1)
    path = folder / f"{head}-hf" / "model.safetensors"
    model = archives.load_in_transformers(path.parent, head)
    with torch.no_grad():
        batch = features_of([folder / f"{i}.wav" for i in range(8)], folder / f"{head}.nemo")
        frames = model.encoder(**batch).last_hidden_state.flatten(0, 1)
        weights = safetensors.load_file(path)
        if head == "ctc":
            head_weight = torch.randn_like(weights["ctc_head.weight"]) / frames.std(0)[:, None]
            weights["ctc_head.weight"] = head_weight
            weights["ctc_head.bias"] = -head_weight[:, :, 0] @ frames.mean(0)
            weights["ctc_head.bias"][-1] += 2
        else:
            projected = frames @ weights["encoder_projector.weight"].T
            scale = 2 / projected.std(0)
            weights["encoder_projector.weight"] *= scale[:, None]
            weights["encoder_projector.bias"] = -projected.mean(0) * scale
            weights["joint.head.weight"] = torch.randn_like(weights["joint.head.weight"])
            weights["decoder.decoder_projector.weight"] *= 3
            bias = weights["joint.head.bias"]
            bias[model.config.blank_token_id] += 12 if head == "rnnt" else 5
            # Excludes duration 0, because transformers has no limit on a TDT model's tokens at one frame.
            bias[model.config.vocab_size : model.config.vocab_size + 1] -= 1e4
    safetensors.save_file(weights, path, metadata={"format": "pt"})


def exported(folder, head):
    (folder / f"{head}.yaml").write_text(SPOKEN.format(head=head))
    octavo(folder, "train", f"{head}.yaml")
    octavo(folder, "export", f"run-{head}", f"{head}-hf")
    octavo(folder, "export", f"run-{head}", f"{head}.nemo")
    vary(folder, head)


def features_of(paths, nemo):
    """Computes features like ParakeetFeatureExtractor, whose filters need librosa; these filters are the
    archive's."""
    with tarfile.open(nemo) as opened:
        state = torch.load(io.BytesIO(opened.extractfile("./model_weights.ckpt").read()), weights_only=True)
    window, filters = (state[f"preprocessor.featurizer.{name}"] for name in ("window", "fb"))
    features = []
    for path in paths:
        with wave.open(str(path)) as file:
            samples = torch.frombuffer(bytearray(file.readframes(file.getnframes())), dtype=torch.int16)
        x = samples.float() / 32768
        x = torch.cat([x[:1], x[1:] - 0.97 * x[:-1]])
        spectrum = torch.stft(
            x, 512, 160, len(window), window, center=True, pad_mode="constant", return_complex=True
        )
        bands = torch.log(filters[0] @ spectrum.abs() ** 2 + 2**-24).T[: len(x) // 160]
        features.append((bands - bands.mean(0)) / (bands.std(0) + 1e-5))
    # ParakeetFeatureExtractor also pads to one frame more than the longest clip.
    lengths = torch.tensor([len(each) for each in features])
    padded = torch.zeros(len(features), int(lengths.max()) + 1, filters.shape[1])
    for row, each in zip(padded, features, strict=True):
        row[: len(each)] = each
    return {"input_features": padded, "attention_mask": torch.arange(padded.shape[1]) < lengths[:, None]}


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("head", ["tdt", "rnnt", "ctc"])
def test_transformers_transcribes_as_octavo_does(spoken, head, batch):
    transformers = pytest.importorskip("transformers")
    folder = spoken / f"{head}-hf"
    if not folder.exists():
        exported(spoken, head)
    clips = [f"{i}.wav" for i in range(8)]
    lines = octavo(spoken, "transcribe", f"{head}-hf", *clips, "--format", "json").splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    ours = {each["audio_filepath"]: each["text"] for each in found}
    model = archives.load_in_transformers(folder, head)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # This is the processor's default.
    merges = "<blank>" not in tokenizer.get_vocab()
    theirs = {}
    for first in range(0, len(clips), batch):
        names = clips[first : first + batch]
        with torch.no_grad():
            out = model.generate(**features_of([spoken / name for name in names], spoken / f"{head}.nemo"))
        tokens = out if head == "ctc" else out.sequences
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True, group_tokens=merges)
        theirs |= dict(zip(names, texts, strict=True))
    assert merges == (head == "ctc")
    assert theirs == ours
    assert len({text for text in ours.values() if text}) > 4
    if head != "ctc":  # a token twice in a row, which CTC's rule would merge
        assert any(
            a == b and a != model.config.blank_token_id
            for row in tokens
            for a, b in itertools.pairwise(row.tolist())
        )


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
    assert "a model of the task text cannot be exported to other formats" in said
    assert "run/checkpoint-1/model.safetensors" in said
    assert not (tmp_path / "out").exists()
