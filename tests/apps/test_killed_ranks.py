"""Kills a rank of `octavo train num_gpus=2` at random moments. The run ends, and the same command resumes
from the newest checkpoint and reaches the bits of an uninterrupted run.

The computation of the ranks is tested by tests/ranks. No timing is asserted, but each wait has a limit.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
TRAINER = pathlib.Path(BINARY).with_name("octavo-trainer")

pytestmark = pytest.mark.skipif(not TRAINER.exists(), reason="this build has no octavo-trainer (LibTorch)")

# Stochastic rounding, dropout and quantized states would each reveal a step that is computed differently.
CONFIG = """\
model: {n_layer: 1, n_embd: 32, n_head: 2, mlp_internal_dim_multiplier: 8, dropout: 0.1}
data: {train: TEXT, block_size: 16, dataloader_num_workers: 1, max_eval_samples: 4}
training:
  optimizer: adamw_8bit
  learning_rate: 3.0e-3
  compute_dtype: bfloat16
  master_weights: stochastic
  per_device_train_batch_size: 2
  max_steps: STEPS
  eval_steps: 40
  save_steps: 5
  save_total_limit: 2
  logging_steps: 1
  sample_tokens: 0
  num_gpus: 2
  parallel: WAY
  device: cpu
output_dir: OUT
"""
STEPS = 160
KILLS = 5  # for each value of `way`
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
LIMIT = 60  # seconds until all ranks have exited after one was killed


class Run:
    def __init__(self, folder, name, way):
        self.out = folder / name
        self.file = folder / f"{name}.yaml"
        text = folder / "text.txt"
        if not text.exists():
            words = random.Random(1).choices(["the cat ", "a dog ", "sees ", "her sister.\n"], k=4000)
            text.write_text("".join(words))
        config = CONFIG.replace("TEXT", str(text)).replace("OUT", str(self.out)).replace("WAY", way)
        self.file.write_text(config.replace("STEPS", str(STEPS)))

    def start(self):
        return subprocess.Popen(
            [TRAINER, "train", self.file],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )

    def step(self):
        """Returns the last step in the log."""
        try:
            whole = (self.out / "metrics.jsonl").read_text().rpartition("\n")[0]
            return max((json.loads(line)["step"] for line in whole.splitlines()), default=0)
        except FileNotFoundError:
            return 0

    def bits(self):
        folder = self.out / f"checkpoint-{STEPS}"
        return {name: (folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


def ranks_of(process):
    """Returns the pids of the processes that the launcher started, rank 0 first."""
    path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        return sorted(int(pid) for pid in path.read_text().split())
    except FileNotFoundError:
        return []


def wait_for(process, ready):
    """Waits until ready() is true. Returns False if the process ends before."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if ready():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    raise AssertionError("it did not come to that")


def kill_a_rank(run, chance):
    """Starts the command and kills a rank during setup or a few steps later. Returns its exit code and
    message."""
    before = run.step()
    process = run.start()
    assert wait_for(process, lambda: len(ranks_of(process)) == 2)
    ranks = ranks_of(process)
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0, 1))
    else:
        target = before + chance.randint(1, 6)
        wait_for(process, lambda: run.step() >= target)
        time.sleep(chance.uniform(0, 0.02))
    if process.poll() is None:
        os.kill(chance.choice(ranks), signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT)
    for pid in ranks:
        assert not pathlib.Path(f"/proc/{pid}").exists(), "a rank is left behind"
    return process.returncode, err


def finish(run):
    process = run.start()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    steps = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in steps if r["kind"] == "train"] == list(range(1, STEPS + 1))
    return run.bits()


# With DDP, rank 0 saves its current step when another rank is killed; with ZeRO it cannot.
@pytest.mark.parametrize("way", ["zero2", "ddp"])
def test_goes_on_to_the_same_bits(tmp_path, way):
    whole = finish(Run(tmp_path, "whole", way))
    chance = random.Random(18)
    kills = runs = 0
    run = Run(tmp_path, "killed", way)
    while kills < KILLS:
        code, err = kill_a_rank(run, chance)
        kills += code != 0
        if code != 0:
            assert "rank" in err, f"exit {code}\n{err}"
        else:  # on a slow machine the run may finish first
            assert run.bits() == whole
            runs += 1
            assert runs < 5, "steps are too fast to be interrupted"
            run = Run(tmp_path, f"killed{runs}", way)
    assert finish(run) == whole
