"""`octavo train` and `octavo sample` from outside: what a run leaves behind, stopping and resuming to the
same bits, stages, and errors. Tiny models on the CPU; no timing is asserted.
"""

import json
import os
import pathlib
import random
import resource
import signal
import struct
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
TRAINER = pathlib.Path(BINARY).with_name("octavo-trainer")

pytestmark = pytest.mark.skipif(not TRAINER.exists(), reason="this build has no octavo-trainer (LibTorch)")

TINY = """\
model: {n_layer: 2, n_embd: 32, n_head: 2, mlp_internal_dim_multiplier: 8, dropout: 0.1}
data: {train: TEXT, block_size: 32, dataloader_num_workers: 1, max_eval_samples: 8}
training:
  optimizer: adamw_8bit
  learning_rate: 3.0e-3
  compute_dtype: float32
  per_device_train_batch_size: 2
  warmup_steps: 3
  max_steps: 12
  eval_steps: 6
  save_steps: 4
  logging_steps: 2
  device: cpu
output_dir: OUT
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    subprocess.run([BINARY, "data", "make-text", path, "--bytes", "60k"], check=True, capture_output=True)
    return path


class Run:
    """A config file, and the command on it."""

    def __init__(self, folder, text, config=TINY):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.out = self.folder / "run"
        self.file = self.folder / "run.yaml"
        self.file.write_text(config.replace("TEXT", str(text)).replace("OUT", str(self.out)))

    def start(self, *words, **options):
        return subprocess.Popen(
            [BINARY, "train", self.file, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            **options,
        )

    def train(self, *words, code=0, **options):
        process = self.start(*words, **options)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, f"exit {process.returncode}\n{out}\n{err}"
        return out + err

    def records(self, kind=None):
        lines = (self.out / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [r for r in records if kind in (None, r["kind"])]

    def lines(self):
        log = self.out / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def bits(self, step):
        folder = self.out / f"checkpoint-{step}"
        return tuple((folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors"))

    def state(self, step):
        return json.loads((self.out / f"checkpoint-{step}" / "state.json").read_text())

    def curves(self):
        """What does not depend on time or memory."""
        return [
            tuple(r.get(key) for key in ("kind", "step", "loss", "lr", "grad_norm", "tokens", "skipped"))
            for r in self.records()
            if r["kind"] in ("train", "eval")
        ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """A run that nothing interrupted."""
    run = Run(tmp_path_factory.mktemp("whole"), text)
    run.said = run.train()
    return run


def safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return header


def test_a_run_and_what_it_leaves(whole):
    said = whole.said
    assert "AdamW 8-bit: " in said
    assert " B/param, " in said
    assert " instead of " in said
    assert "step 12/12" in said
    assert "evaluation loss" in said
    assert "a sample:" in said
    assert sorted(p.name for p in whole.out.iterdir() if not p.name.startswith("events.")) == [
        "checkpoint-12",
        "checkpoint-4",
        "checkpoint-8",
        "config.yaml",
        "latest",
        "metrics.jsonl",
        "report.html",
    ]
    assert len(list(whole.out.glob("events.out.tfevents.*"))) == 1
    assert (whole.out / "latest").resolve().name == "checkpoint-12"
    (start,) = whole.records("start")
    assert start["params"] == 2 * 32 * 256 + 3 * 8 * 32 * 32
    assert start["steps"] == 12
    assert start["batch_tokens"] == 64
    assert [r["step"] for r in whole.records("train")] == [2, 4, 6, 8, 10, 12]
    assert [r["step"] for r in whole.records("eval")] == [6, 12]
    assert [r["step"] for r in whole.records("checkpoint")] == [4, 8, 12]
    (memory,) = whole.records("memory")
    owners = memory["owners"]
    assert owners["params"] == owners["grads"] == 4 * start["params"]
    assert owners["states"] == start["state_bytes"]
    assert owners["activations"] > 0
    assert memory["peak"] == sum(owners.values())
    (end,) = whole.records("end")
    assert end["reason"] == "finished"
    assert 0 <= end["overhead"] <= 1


def test_learning_rate_and_tokens(whole):
    train = {r["step"]: r for r in whole.records("train")}
    assert train[2]["lr"] == pytest.approx(3e-3 * 2 / 3)  # warming up
    assert train[4]["lr"] == pytest.approx(3e-3)
    assert 0 < train[12]["lr"] < train[8]["lr"] < 3e-3
    assert [train[s]["tokens"] for s in (2, 12)] == [128, 768]


def test_the_loss_falls(tmp_path, text):
    run = Run(tmp_path, text)
    run.train("max_steps=150", "eval_steps=150", "save_steps=null", "logging_steps=10", "learning_rate=1e-2")
    losses = [r["loss"] for r in run.records("train")]
    assert losses[0] > 4.5
    assert losses[-1] < run.records("start")[0]["unigram_entropy"]


def test_weights_are_safetensors_with_the_reference_names(whole):
    header = safetensors(whole.out / "checkpoint-12" / "model.safetensors")
    shapes = {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()}
    assert shapes == {
        "decoder": ("F32", [256, 32]),
        "encoder": ("F32", [2, 32, 128]),
        "encoder_v": ("F32", [2, 32, 128]),
        "lm_head": ("F32", [32, 256]),
        "embed.weight": ("F32", [256, 32]),
    }


def test_the_saved_config_is_the_run(whole, tmp_path, text):
    again = Run(tmp_path, text)
    again.file.write_text((whole.out / "config.yaml").read_text())
    again.out = tmp_path / "again"
    again.train(f"output_dir={again.out}")
    assert again.bits(12) == whole.bits(12)


def test_killed_at_random_points_it_ends_with_the_same_bits(whole, tmp_path, text):
    run = Run(tmp_path, text)
    chance = random.Random(7)
    kills = resumed = 0
    for attempt in range(400):
        if kills == 20:
            break
        if (run.out / "checkpoint-12").exists():  # too slow with the axe: start again
            run = Run(tmp_path / str(attempt), text)
        process = run.start()
        # Points of the run rather than times: the machine may be slow. The whole run has 16 lines.
        lines = chance.randrange(16)
        while process.poll() is None and run.lines() < lines:
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.03))
        if process.poll() is None:
            process.kill()
            kills += 1
        _, err = process.communicate()
        resumed += "going on from" in err
        if process.returncode == 0:
            assert run.bits(12) == whole.bits(12)
    assert kills == 20
    assert resumed > 0
    run.train()
    assert run.bits(12) == whole.bits(12)
    assert run.state(12)["sampler"] == whole.state(12)["sampler"]
    assert run.curves() == whole.curves()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_same_command_goes_on(whole, tmp_path, text, number, code):
    run = Run(tmp_path, text)
    long = ["max_steps=100000", "save_steps=null", "eval_steps=null", "lr_scheduler=constant"]
    process = run.start(*long)
    for line in process.stderr:
        if line.startswith("step "):
            break
    process.send_signal(number)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "is saved, and the same command goes on from it" in err
    (saved,) = list(run.out.glob("checkpoint-*"))
    step = int(saved.name.split("-")[1])
    assert run.records("end")[-1] == {**run.records("end")[-1], "reason": "interrupted", "step": step}
    assert (run.out / "report.html").exists()

    target = step + 3
    more = ["save_steps=null", "eval_steps=null", "lr_scheduler=constant", f"max_steps={target}"]
    assert "changed since the checkpoint: training.max_steps: 100000" in run.train(*more)
    straight = Run(tmp_path / "straight", text)
    straight.train(*more)
    assert run.bits(target) == straight.bits(target)


def test_resume_from_an_older_checkpoint(whole, tmp_path, text):
    run = Run(tmp_path, text)
    said = run.train(f"resume_from_checkpoint={whole.out}/checkpoint-8")
    assert "going on from" in said
    assert run.bits(12) == whole.bits(12)
    said = whole.train(f"resume_from_checkpoint={whole.out}/checkpoint-8", "max_steps=20", code=2)
    assert "checkpoint-12 is newer; remove it, or choose another output_dir" in said


def test_a_torn_checkpoint_is_passed_over(whole, tmp_path, text):
    run = Run(tmp_path, text)
    run.train("max_steps=8", "lr_scheduler=constant")
    bits = run.bits(8)
    file = run.out / "checkpoint-8" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    said = run.train("max_steps=8", "lr_scheduler=constant")
    assert "warning: not resumed from" in said
    assert "checkpoint-8" in said
    assert "checkpoint-4, step 4 of 8" in said
    assert run.bits(8) == bits


def test_nothing_left_to_do(whole):
    before = whole.bits(12)
    assert "nothing to do" in whole.train()
    assert whole.bits(12) == before


def test_only_as_many_checkpoints_as_asked_for(tmp_path, text):
    run = Run(tmp_path, text)
    run.train("save_steps=2", "save_total_limit=2")
    assert sorted(p.name for p in run.out.glob("checkpoint-*")) == ["checkpoint-10", "checkpoint-12"]


def test_stages_equal_raising_max_samples_by_hand(tmp_path, text):
    fixed = ["lr_scheduler=constant", "save_steps=null"]
    staged = Run(tmp_path / "staged", text)
    said = staged.train("data.stages=[10, 40, -1]", *fixed)
    assert "stage 2 of 3: 40 samples, to step 8" in said
    assert next((r["stage"], r["samples"]) for r in staged.records("stage")) == (1, 40)
    assert [r["step"] for r in staged.records("eval")] == [4, 6, 8, 12]
    by_hand = Run(tmp_path / "by_hand", text)
    for steps, samples in ((4, 10), (8, 40), (12, -1)):
        by_hand.train(f"max_steps={steps}", f"max_samples={samples}", *fixed)
    assert by_hand.bits(12) == staged.bits(12)


def test_stages_survive_a_stop_within_one(tmp_path, text):
    words = ["data.stages=[10, 40, -1]", "lr_scheduler=constant", "save_steps=1"]
    whole = Run(tmp_path / "whole", text)
    whole.train(*words)
    for step in (4, 5, 8):
        run = Run(tmp_path / str(step), text)
        run.train(f"resume_from_checkpoint={whole.out}/checkpoint-{step}", *words)
        assert run.bits(12) == whole.bits(12), step


def test_epochs(tmp_path, text):
    run = Run(tmp_path, text)
    run.train("num_train_epochs=2", "max_samples=9", "save_steps=null")
    assert run.records("end")[0]["step"] == 9
    assert run.state(9)["sampler"] == {"draws": 18, "samples": 9, "start": 0}


OPTIMIZERS = ["adamw", "adamw_8bit", "adamw4bit", "adamw_fp8", "adam_bf16", "lion_8bit", "sgd", "sgd_4bit"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "precision", ["float32", "bfloat16", "bfloat16-32", "bfloat16-stochastic", "float16"]
)
def test_every_optimizer_in_every_precision_resumes(tmp_path, text, optimizer, precision):
    if precision not in ("float32", "bfloat16") and optimizer not in ("adamw_8bit", "sgd"):
        pytest.skip("two optimizers are enough for the rarer precisions")
    dtype, _, master = precision.partition("-")
    words = [
        f"optimizer={optimizer}",
        f"compute_dtype={dtype}",
        "save_steps=2",
        "max_steps=4",
        "eval_steps=null",
    ]
    if master:
        words.append(f"master_weights={master}")
    whole = Run(tmp_path / "whole", text)
    whole.train(*words)
    header = safetensors(whole.out / "checkpoint-4" / "model.safetensors")
    assert header["encoder"]["dtype"] == ("BF16" if dtype == "bfloat16" else "F32")
    states = safetensors(whole.out / "checkpoint-4" / "optimizer.safetensors")
    assert ("encoder.master" in states) == (dtype == "bfloat16" and master in ("", "32"))
    run = Run(tmp_path / "resumed", text)
    run.train(f"resume_from_checkpoint={whole.out}/checkpoint-2", *words)
    assert run.bits(4) == whole.bits(4)
    assert run.state(4)["loss_scale"] == whole.state(4)["loss_scale"]
    assert bool(whole.state(4)["loss_scale"]) == (dtype == "float16")


def test_4bit_by_the_other_guides_spelling(tmp_path, text):
    run = Run(tmp_path, text, TINY.replace("  optimizer: adamw_8bit\n", "  USE_4BIT_OPTIMIZER: true\n"))
    assert "AdamW 4-bit: " in run.train("max_steps=2")


def test_accumulation_equals_the_large_batch(tmp_path, text):
    words = [
        "dropout=0",
        "optimizer=adamw",
        "max_steps=3",
        "logging_steps=1",
        "eval_steps=null",
        "save_steps=null",
    ]
    large = Run(tmp_path / "large", text)
    large.train("batch_size=8", *words)
    small = Run(tmp_path / "small", text)
    small.train("batch_size=2", "gradient_accumulation_steps=4", *words)
    for one, other in zip(large.records("train"), small.records("train"), strict=True):
        # fp32 sums of a few thousand terms in another order: 2^-24 * sqrt(4096) of relative error, doubled.
        assert one["loss"] == pytest.approx(other["loss"], rel=2**-17)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=2**-15)


def test_gradient_checkpointing_changes_no_bit(whole, tmp_path, text):
    run = Run(tmp_path, text)
    run.train("gradient_checkpointing=true")
    assert run.bits(12) == whole.bits(12)
    plain, thrifty = (r.records("memory")[0]["owners"]["activations"] for r in (whole, run))
    assert thrifty < plain


def test_workers_change_no_bit(whole, tmp_path, text):
    run = Run(tmp_path, text)
    run.train("dataloader_num_workers=0")
    assert run.bits(12) == whole.bits(12)


def test_divergence_stops_the_run(tmp_path, text):
    run = Run(tmp_path, text)
    run.train("max_steps=2", "save_steps=2")
    said = run.train(
        "max_steps=40", "learning_rate=1e38", "optimizer_fallback=null", "max_grad_norm=0", code=1
    )
    assert "diverged: 10 steps in a row" in said
    assert "the last good checkpoint is" in said
    assert "lower learning_rate" in said
    assert run.records("end")[-1]["reason"] == "diverged"
    assert sum(r["kind"] == "warning" for r in run.records()) == 10


def test_divergence_keeps_what_is_good(tmp_path, text):
    run = Run(tmp_path, text)
    run.train("max_steps=4", "save_steps=2")
    words = ["max_steps=40", "save_steps=3", "learning_rate=1e30", "max_grad_norm=0", "save_total_limit=2"]
    said = run.train(*words, "warmup_steps=0", code=1)
    good = [int(p.name.split("-")[1]) for p in run.out.glob("checkpoint-*")]
    assert f"the last good checkpoint is {run.out}/checkpoint-4" in said, (good, said)
    run.train(f"resume_from_checkpoint={run.out}/checkpoint-4", "max_steps=8", f"output_dir={tmp_path}/again")


def test_a_log_that_cannot_grow_loses_nothing(tmp_path, text):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300 << 10, 300 << 10))

    run = Run(tmp_path, text)
    words = ["max_steps=100000", "save_steps=null", "eval_steps=null", "logging_steps=1"]
    said = run.train(*words, code=1, preexec_fn=small_files)
    assert "metrics.jsonl: cannot append" in said
    (saved,) = run.out.glob("checkpoint-*")
    assert f"is saved in {saved}" in said


def test_a_pipe_that_nobody_reads_loses_nothing(tmp_path, text):
    run = Run(tmp_path, text)
    words = ["max_steps=100000", "save_steps=null", "eval_steps=null", "logging_steps=1"]
    process = run.start(*words)
    while run.lines() < 5:
        time.sleep(0.01)
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(timeout=60) == 130
    assert list(run.out.glob("checkpoint-*"))


def test_out_of_memory_in_an_evaluation_saves_the_step(tmp_path, text):
    def little_memory():
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    run = Run(tmp_path, text)
    words = ["n_embd=256", "mlp_internal_dim_multiplier=256", "block_size=64", "batch_size=1", "eval_steps=4"]
    words.append("max_eval_samples=90")
    said = run.train(*words, "per_device_eval_batch_size=90", code=1, preexec_fn=little_memory)
    assert "out of memory" in said
    assert "per_device_eval_batch_size=45" in said
    assert f"step 4 is saved in {run.out}/checkpoint-4" in said
    assert run.records("end")[-1]["reason"] == "failed"


def test_an_evaluation_that_a_signal_cut_short_is_made_up_for(whole, tmp_path, text):
    run = Run(tmp_path, text)
    run.train("max_steps=8", "eval_steps=8", "save_steps=8", "lr_scheduler=constant")
    state = run.out / "checkpoint-8" / "state.json"
    data = json.loads(state.read_text())
    assert data["evaluated"] == 8
    run.train("max_steps=10", "eval_steps=5", "save_steps=9", "lr_scheduler=constant")
    assert [r["step"] for r in run.records("eval")] == [8, 10]


def test_a_users_config_is_kept(tmp_path, text):
    run = Run(tmp_path, text)
    run.out.mkdir()
    mine = run.out / "config.yaml"
    mine.write_text("# mine\n" + run.file.read_text())
    run.file = mine
    assert "is now" in run.train()
    assert (run.out / "config.1.yaml").read_text().startswith("# mine\n")
    before = mine.read_text()
    run.file = run.folder / "run.yaml"
    run.train("max_steps=2", "learning_rate=5")  # nothing to do
    assert mine.read_text() == before


def test_one_process_per_folder(tmp_path, text):
    run = Run(tmp_path, text)
    words = ["max_steps=100000", "save_steps=null", "eval_steps=null"]
    first = run.start(*words)
    while run.lines() < 2:
        time.sleep(0.01)
    assert "another octavo train is using" in run.train(*words, code=1)
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 143, err


def test_latest_that_is_a_folder_stops_nothing(tmp_path, text):
    run = Run(tmp_path, text)
    (run.out / "latest").mkdir(parents=True)
    said = run.train()
    assert said.count("itself is saved") == 1
    assert (run.out / "checkpoint-12").exists()


# --- sample ---


def sample(run, *options, code=0):
    done = subprocess.run(
        [BINARY, "sample", run, *options], capture_output=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == code, done.stderr.decode()
    return done.stdout if code == 0 else done.stderr.decode()


def test_sample(whole):
    text = sample(whole.out, "--prompt", "Once", "--tokens", "20", "--top-k", "3")
    assert text.startswith(b"Once")
    assert len(text) == len(b"Once") + 20 + 1
    assert sample(whole.out, "--prompt", "Once", "--tokens", "20", "--top-k", "3") == text
    assert sample(whole.out / "checkpoint-12", "--prompt", "Once", "--tokens", "20", "--top-k", "3") == text
    assert sample(whole.out, "--prompt", "Once", "--tokens", "20", "--seed", "2") != text
    one = sample(whole.out, "--prompt", "Once", "--tokens", "9", "--temperature", "0")
    assert one == sample(whole.out, "--prompt", "Once", "--tokens", "9", "--top-k", "1", "--seed", "5")


def test_sample_longer_than_a_block(whole):
    assert len(sample(whole.out, "--prompt", "x" * 50, "--tokens", "10")) == 61


def test_sample_errors(whole, tmp_path):
    assert "no checkpoint is there" in sample(tmp_path, code=2)
    assert "--prompt" in sample(whole.out, "--prompt", "", code=2)
    assert "--tokens" in sample(whole.out, "--tokens", "-1", code=2)
    assert "--seed" in sample(whole.out, "--seed", "-1", code=2)
    assert sample(whole.out, "--prompt", "a", "--tokens", "3", "--temperature", "1e-40")
    assert "training.device" in sample(whole.out, "--device", "abacus", code=2)


# --- errors ---


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["data.train=missing.txt"], None, ["missing.txt"]),
        (["data.train=EMPTY"], None, ["empty.txt", "empty"]),
        (["data.train=SHORT"], None, ["short.txt", "block_size"]),
        (["data.train=null"], 2, ["data.train"]),
        (["learning_rat=1"], 2, ["learning_rat", "did you mean", "learning_rate"]),
        (["num_gpus=2"], None, ["num_gpus", "multi-GPU training is not built in yet"]),
        (["use_fp8=true"], None, ["FP8 compute is not built in yet"]),
        (["mlp_internal_dim_multiplier=1", "n_embd=33"], None, ["mlp_internal_dim_multiplier"]),
    ],
)
def test_bad_settings(tmp_path, text, words, code, parts):
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "short.txt").write_bytes(b"short")
    run = Run(tmp_path, text)
    places = {"EMPTY": tmp_path / "empty.txt", "SHORT": tmp_path / "short.txt"}
    for name, path in places.items():
        words = [word.replace(f"={name}", f"={path}") for word in words]
    process = run.start(*words)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code if code else process.returncode in (1, 2)
    assert err.startswith("octavo: ")
    assert "Traceback" not in err
    for part in parts:
        assert part in err
    assert not run.out.exists(), "a run that cannot start leaves nothing"


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU")
def test_cuda_asked_for_and_absent(tmp_path, text):
    said = Run(tmp_path, text).train("device=cuda", code=1)
    assert "training.device: cuda was asked for" in said
    assert "device: auto or cpu" in said


def test_an_output_folder_that_cannot_be_written(tmp_path, text):
    (tmp_path / "file").write_text("")
    said = Run(tmp_path, text).train(f"output_dir={tmp_path}/file/run", code=1)
    assert f"{tmp_path}/file" in said


def test_a_checkpoint_of_another_model(whole, tmp_path, text):
    run = Run(tmp_path, text)
    run.train("max_steps=2")
    before = run.bits(2)
    said = run.train("n_embd=64", code=2)
    assert "it is of another model or precision" in said
    assert "encoder is F32 [2, 32, 128], expected F32 [2, 64, 256]" in said
    said = run.train("compute_dtype=bfloat16", code=2)
    assert "encoder is F32 [2, 32, 128], expected BF16 [2, 32, 128]" in said
    said = run.train("optimizer=adamw_4bit", code=2)
    assert "its optimizer states are of another kind" in said
    assert "encoder: 8bit states" in said
    said = run.train("resume_from_checkpoint=false", code=2)
    assert "has checkpoints already" in said
    assert run.bits(2) == before


def test_out_of_memory(tmp_path, text):
    run = Run(tmp_path, text)

    def little_memory():
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))

    said = run.train(
        "batch_size=4096", "block_size=512", "n_embd=256", "n_head=2", "mlp_internal_dim_multiplier=64",
        "data.train=[" + ",".join([str(text)] * 2) + "]", code=1, preexec_fn=little_memory,
    )  # fmt: skip
    assert "out of memory" in said
    assert "what would help" in said
    assert "gradient_checkpointing=true" in said
    assert "per_device_train_batch_size=2048 gradient_accumulation_steps=2" in said


def test_print_config(tmp_path, text):
    run = Run(tmp_path, text)
    done = subprocess.run(
        [BINARY, "train", run.file, "learning_rate=1", "--print-config"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "training.learning_rate" in done.stdout
    assert "command line" in done.stdout
    assert "run.yaml:" in done.stdout
    assert "default" in done.stdout
    assert not run.out.exists()
    everything = subprocess.run(
        [BINARY, "train", "--print-config"], capture_output=True, text=True, check=True
    )
    assert "data.block_size" in everything.stdout
    assert subprocess.run([BINARY, "train"], capture_output=True, check=False).returncode == 2
