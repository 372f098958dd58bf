"""Tests `octavo plan` as a subprocess: the table, JSON, what fits, advice, the page, and errors.

OCTAVO_BIN (or OCTAVO_COMMAND) names the binary; the default is build/bin/octavo.
"""

import json
import os
import pathlib
import resource
import subprocess
import time
import wave

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = (
    os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
)


def have_trainer():
    found = subprocess.run([BINARY, "plan", "--help"], capture_output=True, text=True, timeout=60)
    return found.returncode == 0


pytestmark = pytest.mark.skipif(not have_trainer(), reason="this octavo is built without the trainer")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    (folder / "text.txt").write_text("once upon a time there was a miller " * 8000)
    path = folder / "run.yaml"
    path.write_text(
        "model: {name: bdh, n_layer: 6, n_embd: 256, n_head: 4}\n"
        "data: {train: text.txt, block_size: 512}\n"
        "training: {optimizer: adamw_8bit, compute_dtype: bfloat16, batch_size: 32, max_steps: 9}\n"
    )
    return path


def plan(config, *words):
    return subprocess.run([BINARY, "plan", str(config), *words], capture_output=True, text=True, timeout=120)


def planned(config, *words):
    done = plan(config, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_table_for_people(config):
    done = plan(config, "--gpu", "h200")
    assert done.returncode == 0, done.stderr
    for text in ("NVIDIA H200", "weights", "activations", "CUDA context", "it fits", "tokens/s; bound by"):
        assert text in done.stdout


def test_it_takes_less_than_five_seconds(config):
    """Limits the time of the command itself, because a user waits for it."""
    begin = time.monotonic()
    planned(config, "--gpu", "h200")
    assert time.monotonic() - begin < 30  # generous for a busy machine; it usually takes half a second


def test_the_peak_of_a_model_that_was_measured(config):
    """25.3M parameters with checkpointing: 7.10 GB, without 29.8 (benchmarks/records/2026-11-18)."""
    found = planned(config, "--gpu", "h200", "dropout=0.1", "gradient_checkpointing=true")
    assert found["memory"]["allocated"] == pytest.approx(7.10e9, rel=0.01)
    found = planned(config, "--gpu", "h200", "dropout=0.1", "gradient_checkpointing=false")
    assert found["memory"]["allocated"] == pytest.approx(29.8e9, rel=0.01)


def test_any_number_of_micro_batches_is_planned_at_once(config):
    """Each micro-batch after the second one adds the same costs."""

    def kernels(passes):
        found = planned(config, "--gpu", "h200", "batch_size=1", f"gradient_accumulation_steps={passes}")
        return found["time"]["kernels"], found["time"]["host_seconds"]

    (two, host_two), (three, host_three), (many, host_many) = (kernels(n) for n in (2, 3, 1 << 24))
    more = (1 << 24) - 2
    assert host_many == pytest.approx(host_two + more * (host_three - host_two), rel=1e-6)
    for name, seconds in many.items():
        assert seconds == pytest.approx(two[name] + more * (three[name] - two[name]), rel=1e-6), name


def test_evaluations_count(config):
    """Trains 2 sequences and evaluates 32: 7.56 GB on an H200, of which a step uses 1.68 GB."""
    words = ("model.n_embd=512", "dropout=0.1", "gradient_checkpointing=true", "batch_size=2")
    found = planned(config, "--gpu", "h200", *words, "per_device_eval_batch_size=32", "max_eval_samples=32")
    assert found["memory"]["allocated"] == pytest.approx(7.56e9, rel=0.01)
    assert found["memory"]["step"]["allocated"] == pytest.approx(1.68e9, rel=0.01)
    assert found["memory"]["evaluation"]["rows"] == 32


def write_recording(path, seconds):
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16000)
        sound.writeframes(bytes(range(1, 251)) * (int(seconds * 32000) // 250))


@pytest.fixture
def recordings(tmp_path):
    """Writes a config of a small model and eight recordings of three seconds."""
    words = ["a", "small", "model", "hears", "words", "and", "says", "what", "it", "heard"]
    for name, seconds in (("train", 3.0), ("val", 1.5)):
        lines = []
        for i in range(8):
            write_recording(tmp_path / f"{name}{i}.wav", seconds)
            line = {"audio_filepath": f"{name}{i}.wav", "duration": seconds, "text": " ".join(words[i % 3 :])}
            lines.append(json.dumps(line) + "\n")
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    done = subprocess.run(
        [BINARY, "data", "make-tokenizer", "tok", "train.jsonl", "--vocab-size", "24"],
        **{"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60},
    )
    if "has no SentencePiece" in done.stderr and not os.environ.get("CI"):
        pytest.skip("this octavo is built without recordings")
    assert done.returncode == 0, done.stderr
    config = tmp_path / "run.yaml"
    config.write_text(
        "model: {name: fastconformer, tokenizer: {dir: tok}, encoder: {feat_in: 80, n_layers: 2, d_model: 64,"
        " n_heads: 4, subsampling_conv_channels: 16}, decoder: {pred_hidden: 64, pred_rnn_layers: 1},"
        " joint: {joint_hidden: 64}}\n"
        "data: {train_manifest: train.jsonl, val_manifest: val.jsonl}\n"
        "training: {optimizer: adamw_8bit, compute_dtype: bfloat16, batch_size: 4, max_steps: 2}\n"
    )
    return config


def test_recordings(recordings):
    """Features are computed from sound on the GPU, so their kernels and memory are part of the prediction."""
    config = recordings
    for head in ("tdt", "rnnt", "ctc"):
        found = planned(config, "--gpu", "h100", f"head={head}")
        assert "aten::_fft_r2c" in found["time"]["kernels"]
        assert found["batch"]["rows"] == 4
    # A batch of clips is limited in seconds, and advice divides this limit, too. Half the limit saves less
    # than the gradient sums of accumulation need.
    clips = ("head=ctc", "batch_size=auto", "data.batch_seconds=24")
    advice = planned(config, "--gpu", "h100", *clips, "--advise")["advice"]
    quarter = ["data.batch_seconds=6", "training.gradient_accumulation_steps=4"]
    assert quarter in [each["settings"] for each in advice]
    with_ctc = ("--gpu", "h100", "head=ctc", "batch_size=32")
    activations = [
        planned(config, *with_ctc, *words)["memory"]["owners"]["activations"]
        for words in ((), ("speed_perturb=[0.5]",))
    ]
    assert activations[1] > 1.4 * activations[0]  # half the speed doubles the length


@pytest.mark.parametrize(
    ("limit", "first"),
    [
        ("batch_size=8", "per_device_train_batch_size=4 gradient_accumulation_steps=2 ("),
        ("data.batch_seconds=160", "data.batch_seconds=80 gradient_accumulation_steps=2 ("),
    ],
)
def test_a_full_device_is_told_half_the_batch_first(recordings, limit, first):
    """Uses 2,048 channels and eight clips of 20 s: the first tensor has 2.6 GB, and the process is limited
    to 2 GiB."""
    write_recording(recordings.parent / "long.wav", 20)
    line = json.dumps({"audio_filepath": "long.wav", "duration": 20, "text": "a small model"}) + "\n"
    (recordings.parent / "long.jsonl").write_text(8 * line)
    wide = (
        "train_manifest=long.jsonl",
        "head=ctc",
        "encoder.subsampling_conv_channels=2048",
        "compute_dtype=float32",
        "device=cpu",
    )
    batch = (limit,) if limit.startswith("batch_size") else (limit, "batch_size=auto")
    done = subprocess.run(
        [BINARY, "train", str(recordings), *wide, *batch],
        cwd=recordings.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)),
    )
    assert done.returncode == 1, done.stderr
    assert "out of memory: " in done.stderr
    helps = done.stderr.split("what would help:\n")[1].splitlines()
    assert helps[0].strip().startswith(first), helps
    assert helps[0].strip().endswith(" GB: the same step in micro-batches of 1/2)"), helps
    assert "data.max_duration=10 (drops data: clips longer than 10 s are skipped)" in helps[-1], helps


def test_steps_can_be_measured_only_where_the_gpu_is(config):
    done = plan(config, "--measure", "--solve", "batch")
    assert done.returncode == 2
    assert "--solve excludes --measure" in done.stderr
    done = plan(config, "--measure", "--gpu", "this:99")
    assert done.returncode != 0
    assert "got 'this:99'" in done.stderr
    done = plan(config, "--measure", "--gpu", "h100", "device=cpu")
    assert done.returncode == 2
    assert "--gpu is h100; use --gpu this" in done.stderr


def test_ranks_of_the_config(config):
    assert planned(config, "--gpu", "h100", "num_gpus=4")["num_gpus"] == 4
    assert planned(config, "--gpu", "h100", "num_gpus=4", "--num-gpus", "2")["num_gpus"] == 2
    assert planned(config, "--gpu", "h100")["num_gpus"] == 1


def test_json_adds_up(config):
    found = planned(config, "--gpu", "h100")
    memory = found["memory"]
    assert sum(memory["owners"].values()) == memory["total"]
    assert memory["allocated"] <= memory["reserved"] < memory["total"]
    assert found["parameters"] == found["trained"] == 25_296_896
    assert found["time"]["step_seconds"] > 0
    assert found["time"]["kernels"]


def test_a_gpu_without_bf16_units_is_named(config):
    """A V100's tensor cores support float16 only, so bf16 counts at the rate of fp32, and a warning is
    printed."""
    slow, fast = (planned(config, "--gpu", "v100", f"compute_dtype={each}") for each in ("bf16", "fp16"))
    assert slow["gpu"]["name"] == "NVIDIA V100 SXM2 16 GB"
    warning = (
        "compute_dtype: bfloat16 is slow on NVIDIA V100 SXM2 16 GB (compute capability 7.0), "
        "whose tensor cores support float16 and not bfloat16; use compute_dtype=float16"
    )
    assert slow["time"]["warning"] == warning
    assert warning in plan(config, "--gpu", "v100").stdout
    assert "warning" not in fast["time"]
    assert slow["time"]["step_seconds"] > 1.5 * fast["time"]["step_seconds"]
    for card in ("a100", "b100", "RTX 4070 Ti SUPER"):
        assert "warning" not in planned(config, "--gpu", card)["time"]


def test_a_small_card_does_not_fit_and_gets_advice(config):
    found = planned(config, "--gpu", "8GB", "optimizer=adamw", "gradient_checkpointing=false", "--advise")
    assert not found["memory"]["fits"]
    advice = found["advice"]
    assert advice[0]["fits"]
    assert {"settings", "saves", "slower", "fits", "why"} <= set(advice[0])
    again = planned(
        config, "--gpu", "8GB", "optimizer=adamw", "gradient_checkpointing=false", *advice[0]["settings"]
    )
    assert again["memory"]["fits"]
    assert found["memory"]["total"] - again["memory"]["total"] == advice[0]["saves"]


def keys(settings):
    return [word.partition("=")[0] for word in settings]


def test_few_settings_are_advised_where_one_is_not_enough(config):
    words = ("--gpu", "3GB", "optimizer=adamw", "gradient_checkpointing=false")
    advice = planned(config, *words, "--advise")["advice"]
    first = advice[0]
    assert first["fits"]
    assert not any(each["fits"] for each in advice if len(each["settings"]) == 1)
    # Checkpointing and micro-batches of half the size are two changes; the second one has two keys.
    assert len(first["settings"]) <= 3
    for each in advice:
        assert len(set(keys(each["settings"]))) == len(each["settings"])
    again = planned(config, *words, *first["settings"])
    assert again["memory"]["fits"]


def test_everything_is_advised_once_where_pairs_are_not_enough(config):
    """The advice combines settings with four different keys; little more than the weights remains on the
    GPU."""
    words = ("optimizer=adamw", "gradient_checkpointing=false", "batch_size=16", "model.n_embd=512")
    most = ("gradient_checkpointing=true", "offload=host", "offload_gradients=true")
    small = ("master_weights=stochastic", "batch_size=2", "gradient_accumulation_steps=8")
    smallest = planned(config, "--gpu", "3GB", *words, *most, *small)["memory"]["total"]
    size = f"{smallest / 1.052e9 + 0.01:.2f}GB"  # a plan may use 5% more bytes than the nominal GB of a GPU
    found = planned(config, "--gpu", size, *words, "--advise")
    for each in found["advice"]:
        assert len(set(keys(each["settings"]))) == len(each["settings"]), each
    best = found["advice"][0]
    assert best["fits"], found["memory"]["total"]
    assert len(best["settings"]) > 3


def test_advice_fits_a_terminal(config):
    for size in ("3GB", "8GB"):
        done = plan(config, "--gpu", size, "optimizer=adamw", "gradient_checkpointing=false", "--advise")
        assert done.returncode == 0, done.stderr
        assert "model.gradient_checkpointing=true" in done.stdout
        table = done.stdout.partition("saves")[2]
        assert max(map(len, table.splitlines())) <= 100


def test_a_run_that_fits_needs_nothing(config):
    said = plan(config, "--gpu", "h200", "--advise").stdout
    assert "nothing is needed: it fits; what settings would save besides:" in said
    assert "nothing is needed" not in plan(config, "--gpu", "8GB", "--advise").stdout


def test_the_largest_batch(config):
    found = planned(config, "--gpu", "24GB", "--solve", "batch")
    (word,) = found["solution"]["settings"]
    rows = int(word.partition("=")[2])
    assert planned(config, "--gpu", "24GB", f"batch_size={rows}")["memory"]["fits"]
    assert not planned(config, "--gpu", "24GB", f"batch_size={rows + 1}")["memory"]["fits"]


def test_many_gpus(config):
    one, many = (planned(config, "--gpu", "h100", "--num-gpus", str(count)) for count in (1, 64))
    assert many["time"]["tokens_per_second"] > 32 * one["time"]["tokens_per_second"]


def test_a_page(config, tmp_path):
    page = tmp_path / "plan.html"
    done = plan(config, "--gpu", "h100", "--html", str(page))
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "run.yaml on NVIDIA H100" in text
    assert "http://" not in text
    assert "https://" not in text
    bad = plan(config, "--gpu", "h100", "--html", str(tmp_path / "no" / "plan.html"))
    assert bad.returncode != 0
    assert "cannot be written" in bad.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "voodoo2"], "got 'voodoo2', expected one of"),
        (["--gpu", "h100", "data.train=nowhere.txt"], "nowhere.txt"),
        (["--gpu", "h100", "learning_rat=1"], "unknown key"),
        (["--gpu", "h100", "--solve", "everything"], "--solve"),
        (["--gpu", "h100", "n_head=3"], "n_head"),
    ],
)
def test_errors_name_the_thing(config, words, message):
    done = plan(config, *words)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
