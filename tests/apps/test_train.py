"""Tests `octavo train` and `octavo sample` as subprocesses: a run's output files, signals, pipes and
errors.

The results of a run (resuming to the same bits, stages, precisions, failures) are tested in one process by
tests/train/run_test.cc and run_stop_test.cc, because each start of the trainer loads LibTorch, which takes
a second. No timing is asserted.
"""

import json
import os
import pathlib
import signal
import socket
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
  sample_tokens: 8
  device: cpu
output_dir: OUT
"""
ENDLESS = ["max_steps=100000", "save_steps=null", "eval_steps=null", "logging_steps=1"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    subprocess.run([BINARY, "data", "make-text", path, "--bytes", "60k"], check=True, capture_output=True)
    return path


class Run:
    """A config file and the command that trains it."""

    def __init__(self, folder, text, config=TINY):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.out = self.folder / "run"
        self.file = self.folder / "run.yaml"
        self.file.write_text(config.replace("TEXT", str(text)).replace("OUT", str(self.out)))

    def start(self, *words, **variables):
        return subprocess.Popen(
            [BINARY, "train", self.file, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**ENVIRONMENT, **variables},
        )

    def train(self, *words, code=0):
        process = self.start(*words)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, f"exit {process.returncode}\n{out}\n{err}"
        return out, err

    def records(self, kind=None):
        lines = (self.out / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [r for r in records if kind in (None, r["kind"])]

    def lines(self):
        log = self.out / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def wait_for_lines(self, process, count):
        """Waits until the log has `count` lines. Fails if the process ends before, or after a minute."""
        deadline = time.monotonic() + 60
        while self.lines() < count:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, f"{self.lines()} lines after a minute"
            time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """Returns an uninterrupted run, which tests only read."""
    run = Run(tmp_path_factory.mktemp("whole"), text)
    run.printed, run.said = run.train()
    return run


def test_a_run_and_what_it_leaves(whole):
    assert (
        whole.printed == f"step 12 is saved in {whole.out}/checkpoint-12\nreport: {whole.out}/report.html\n"
    )
    for part in ("AdamW 8-bit: ", " B/param, ", "step 12/12", "evaluation loss", "memory:", "a sample:"):
        assert part in whole.said
    assert "[W" not in whole.said, "a warning of torch's, which nobody can follow"
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
    assert whole.records("end")[0]["reason"] == "finished"


def test_weights_are_safetensors_with_the_reference_names(whole):
    data = (whole.out / "checkpoint-12" / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()} == {
        "decoder": ("F32", [256, 32]),
        "encoder": ("F32", [2, 32, 128]),
        "encoder_v": ("F32", [2, 32, 128]),
        "lm_head": ("F32", [32, 256]),
        "embed.weight": ("F32", [256, 32]),
    }


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path, text):
    run = Run(tmp_path, text)
    process = run.start(*ENDLESS)
    run.wait_for_lines(process, 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped by Ctrl-C at step " in err
    assert "is saved, and the same command resumes from it" in err
    (saved,) = run.out.glob("checkpoint-*")
    step = int(saved.name.split("-")[1])
    _, err = run.train(*ENDLESS, f"max_steps={step + 1}")
    assert f"resuming from {saved}, step {step} of {step + 1}" in err
    assert (run.out / f"checkpoint-{step + 1}").exists()


def test_a_pipe_that_nobody_reads_loses_nothing(tmp_path, text):
    run = Run(tmp_path, text)
    process = run.start(*ENDLESS)
    run.wait_for_lines(process, 5)
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(timeout=60) == 130
    assert list(run.out.glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["learning_rat=1"], 2, ["learning_rat", "did you mean", "learning_rate"]),  # by octavo itself
        (["data.train=missing.txt"], None, ["missing.txt"]),  # by octavo-trainer
    ],
)
def test_bad_settings(tmp_path, text, words, code, parts):
    run = Run(tmp_path, text)
    process = run.start(*words)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code if code else process.returncode in (1, 2)
    assert out == ""
    assert err.startswith("octavo: ")
    for part in parts:
        assert part in err
    assert not run.out.exists(), "a run that cannot start leaves nothing"


TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize(
    ("words", "variables", "parts"),
    [
        (["deepspeed={zero_optimization: {stage: 3}}"], {}, ["zero_optimization.stage: got 3", "0, 1 or 2"]),
        (
            ["deepspeed={zero_optimization: {offload_param: {device: cpu}}}"],
            {},
            ["offload_param", "training.offload"],
        ),
        (["deepspeed={flops_profiler: {}}"], {}, ["flops_profiler: the trainer has no such feature"]),
        (
            ["deepspeed={gradient_clipping: 1}", "grad_clip=2"],
            {},
            ["gradient_clipping", "is 2 (command line)"],
        ),
        (
            ["num_gpus=2", "global_batch_size=6"],
            {},
            ["global_batch_size: got 6", "there are 2 ranks", "1 x 3"],
        ),
        (
            ["num_gpus=99", "device=cuda"],
            {},
            [("99 ranks on this machine need a GPU each", "no CUDA device")],
        ),
        (
            ["num_gpus=99", "device=auto"],
            {},
            [("99 ranks on this machine need a GPU each", "num_gpus: got 99, but this LibTorch sees no GPU")],
        ),
        (["num_gpus=65536"], {}, ["num_gpus: got 65536", "the limit is", "logical processors"]),
        (["num_gpus=2", "device=cuda:0"], {}, ["device", "cuda:0"]),
        (["num_gpus=3"], TORCHRUN, ["num_gpus: got 3, but 2 ranks were started"]),
        ([], {"RANK": "0"}, ["WORLD_SIZE is not set, but RANK is"]),
    ],
)
def test_bad_ranks(tmp_path, text, words, variables, parts):
    """Each error is reported once, before any work begins: no rank waits for another one."""
    run = Run(tmp_path, text)
    process = run.start(*words, **variables)
    out, err = process.communicate(timeout=30)
    assert process.returncode in (1, 2), err
    assert out == ""
    for part in parts:
        assert any(each in err for each in (part if isinstance(part, tuple) else (part,))), err
    assert err.count("octavo: ") == 1, err
    assert not run.out.exists(), "a run that cannot start leaves nothing"


def test_a_signal_is_obeyed_before_all_ranks_are_there(tmp_path, text):
    """Only rank 0 of two ranks is started: it serves the store and waits."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = Run(tmp_path, text)
    process = run.start(**{**TORCHRUN, "MASTER_PORT": str(port)})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "octavo: stopped by SIGTERM before all ranks were there; nothing was trained" in err


def test_two_ranks_train_as_one(tmp_path, text, whole):
    run = Run(tmp_path, text)
    printed, said = run.train(
        "num_gpus=2", "global_batch_size=2", "batch_size=1", "deepspeed={steps_per_print: 9}"
    )
    assert printed == f"step 12 is saved in {run.out}/checkpoint-12\nreport: {run.out}/report.html\n"
    assert said.count("steps_per_print: without effect") == 1
    (start,) = run.records("start")
    assert start["ranks"] == 2
    losses = [[record["loss"] for record in each.records("eval")] for each in (run, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    (saved, other) = ((each.out / "checkpoint-12" / "config.yaml").read_text() for each in (run, whole))
    assert "num_gpus: 2" in saved
    assert "num_gpus: null" in other
    # On one rank the run resumes with the same number of samples per step.
    _, said = run.train("num_gpus=1", "global_batch_size=2", "batch_size=1", "max_steps=13")
    assert "step 12 of 13" in said


def test_print_config(tmp_path, text):
    def octavo(*args):
        return subprocess.run([BINARY, "train", *args], capture_output=True, text=True, check=False)

    run = Run(tmp_path, text)
    done = octavo(run.file, "learning_rate=1", "--print-config")
    assert done.returncode == 0, done.stderr
    for part in ("training.learning_rate", "command line", "run.yaml:", "default"):
        assert part in done.stdout
    too_long = [line for line in done.stdout.splitlines() if len(line) > 100]
    assert all(str(tmp_path) in line for line in too_long), "a path stays in one piece"
    assert not run.out.exists()
    assert "data.block_size" in octavo("--print-config").stdout
    assert octavo().returncode == 2


def test_a_dry_run_prints_a_summary_and_writes_nothing(tmp_path, text):
    run = Run(tmp_path, text)
    printed, _ = run.train("--dry-run", "3", "max_steps=500")
    assert printed.startswith("dry run: 3 steps and an evaluation; nothing was written\n")
    for part in ("peak of a step", "tok/s", "to the end: 500 steps in", " hours", "checkpoints: "):
        assert part in printed
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]
    printed, _ = run.train("--dry-run", "2", "max_steps=1")
    assert printed.startswith("dry run: 1 step and an evaluation; nothing was written\n")
    assert "to the end: 1 step in " in printed
    for words in (["--dry-run", "1"], ["--dry-run", "3", "--resume"]):
        process = run.start(*words)
        assert "--dry-run" in process.communicate(timeout=60)[1]
        assert process.returncode == 2
    process = run.start("--dry-run", "1000000", *ENDLESS, "n_layer=1")
    while "dry run: step 1 of" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert "stopping after this step; a dry run writes nothing" in said
    assert "the dry run was stopped by Ctrl-C; nothing was written" in said
    assert "with a checkpoint" not in said
    assert process.returncode == 130
    assert not run.out.exists()


# --- sample ---


def sample(run, *options, code=0):
    done = subprocess.run(
        [BINARY, "sample", run, *options], capture_output=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == code, done.stderr.decode()
    return done.stdout if code == 0 else done.stderr.decode()


def test_sample(whole):
    options = ("--prompt", "Once", "--tokens", "20", "--top-k", "3")
    text = sample(whole.out, *options)
    assert text.startswith(b"Once")
    assert len(text) == len(b"Once") + 20 + 1
    assert sample(whole.out / "checkpoint-12", *options) == text
    # The prompt is longer than the model's context, and the temperature causes an overflow in fp32.
    assert len(sample(whole.out, "--prompt", "x" * 50, "--tokens", "10", "--temperature", "1e-40")) == 61


def test_sample_takes_the_checkpoint_that_is_named(tmp_path, text):
    run = Run(tmp_path, text)
    run.train("max_steps=4", "save_steps=2", "eval_steps=1", "save_best=loss", "sample_tokens=0")
    losses = {record["step"]: record["loss"] for record in run.records("eval")}
    best = min(losses, key=losses.get)
    options = ("--tokens", "20", "--temperature", "0")
    chosen = {step: sample(run.out / f"checkpoint-{step}", *options) for step in {2, 4, best}}
    assert sample(run.out, "--checkpoint", "2", *options) == chosen[2]
    assert sample(run.out, "--checkpoint=latest", *options) == sample(run.out, *options) == chosen[4]
    assert sample(run.out, "--checkpoint", "best", *options) == chosen[best]
    assert sample(run.out / "best", *options) == chosen[best]
    assert "no checkpoint of step 3; its checkpoints are of step 4, 2" in sample(
        run.out, "--checkpoint", "3", code=2
    )
    assert "got worst, expected best, latest or the number" in sample(
        run.out, "--checkpoint", "worst", code=2
    )


def test_sample_errors(whole, tmp_path):
    assert "found no checkpoint" in sample(tmp_path, code=2)
    assert "training.device" in sample(whole.out, "--device", "abacus", code=2)
    for option, value in (("--prompt", ""), ("--tokens", "-1"), ("--seed", "-1")):
        assert option in sample(whole.out, option, value, code=2)
