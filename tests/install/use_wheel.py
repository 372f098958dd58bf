"""Uses an installed wheel: steps, the commands that need no trainer, and the errors of those that do.

test_wheel.py and the release workflow run this file in an environment that has the wheel and torch. It prints
the path of each octavo library that was loaded.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import sysconfig
import tempfile

import torch

BY_TORCH = set(sys.modules)

import octavo  # noqa: E402
import octavo.optim  # noqa: E402

COMMAND = pathlib.Path(sysconfig.get_path("scripts")) / "octavo"


def check_imports() -> None:
    """DTensors take half a second to import; a program without them does not wait for them."""
    ours = set(sys.modules) - BY_TORCH
    assert "octavo.optim" in ours
    assert "torch.distributed.tensor" not in ours


def run(*arguments: str, status: int = 0) -> str:
    """Returns what the command prints, on the stream that belongs to `status`."""
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stderr if status else done.stdout


def check_steps() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    theirs.load_state_dict(ours.state_dict())
    before = ours.weight.detach().clone()
    inputs = torch.randn(8, 64)
    optimizers = (
        octavo.optim.AdamW8bit(ours.parameters(), lr=1e-2),
        torch.optim.AdamW(theirs.parameters(), lr=1e-2),
    )
    for model, optimizer in zip((ours, theirs), optimizers, strict=True):
        model(inputs).square().mean().backward()
        optimizer.step()
    assert not torch.equal(ours.weight, before)
    # A first step reads no stored moment: eight bits cost nothing yet.
    torch.testing.assert_close(ours.weight, theirs.weight)
    assert optimizers[0].state[ours.weight]["exp_avg"].dtype == torch.uint8


def check_command(folder: pathlib.Path) -> None:
    info = json.loads(run("info", "--json"))
    assert info["version"] == octavo.__version__
    assert not info["trainer"]["available"]
    (row,) = json.loads(
        run("bench", "optimizer", "--numel", "8192", "--state", "8bit", "--repeat", "1", "--json")
    )["rows"]
    assert row["ms_median"] > 0
    text, config = folder / "tales.txt", folder / "run.yaml"
    run("data", "make-text", str(text), "--bytes", "20k", "--force")
    run("init", str(config), "--task", "text", "--train", str(text), "--force")
    for command in ("train", "plan"):
        error = run(command, str(config), status=1)
        assert error.count("\n") == 1, error
        assert "`make` in octavo's source code" in error
    assert "octavo.plan(model, ...)" in error


check_imports()
check_steps()
with tempfile.TemporaryDirectory() as folder:
    check_command(pathlib.Path(folder))
maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
print(*{line.split(maxsplit=5)[5] for line in maps if "liboctavo" in line})
