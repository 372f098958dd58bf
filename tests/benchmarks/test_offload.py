"""Tests offload.py on the CPU with a tiny model: rows that run, rows that fail, wrong options."""

from __future__ import annotations

import importlib
import itertools
import json
import pathlib
import sys
from typing import Any

import pytest
import torch

SMALL = {"layers": 1, "width": 48, "heads": 2, "batch": 1, "repeat": 2, "rounds": 1, "warm-up": 1}
TINY = ["--device", "cpu", *(word for name, value in SMALL.items() for word in (f"--{name}", str(value)))]


@pytest.fixture
def script() -> Any:
    return importlib.import_module("offload")


def run_here(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the rows in this process, because importing torch takes longer than a row."""

    def run_row(_file: str, arguments: list[str], limit_s: float) -> dict[str, Any]:
        assert limit_s == 240
        monkeypatch.setattr(sys, "argv", ["offload.py", *arguments])
        options = script.parse_options()
        try:
            return dict(json.loads(json.dumps(script.run(options.one, options))))
        except Exception as error:
            raise script.RowError(f"{type(error).__name__}: {error}") from error

    monkeypatch.setattr(script, "run_row", run_row)


def table(script: Any, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    run_here(script, monkeypatch)
    monkeypatch.setattr(sys, "argv", ["offload.py", *TINY, *options])
    assert script.main() == 0


def test_rows_that_run_and_rows_that_fail(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "found.json"
    rows = "bf16: none,bf16: torchao,clip: none,eager: none octavo"
    table(script, monkeypatch, "--rows", rows, "--skip", "offload_gradients", "--json", str(file))
    printed, found = capsys.readouterr().out, json.loads(file.read_text())["rows"]
    runs = {row["row"]: row for row in found if "error" not in row}
    assert list(runs) == [
        "bf16: none torch fused",
        "bf16: none octavo 8bit",
        "bf16: none octavo 4bit + gradient_release",
        "bf16 clip: none torch fused",
        "bf16 clip: none octavo 8bit",
        "amp eager: none octavo 8bit",
    ]
    assert all(len(row["rounds"]) == 1 and row["seconds"] > 0 for row in runs.values())
    losses = {name: row["loss"] for name, row in runs.items()}
    assert losses["bf16: none octavo 8bit"] == pytest.approx(losses["bf16: none torch fused"], abs=1e-3)
    failed = "| bf16: torchao | failed: AssertionError: CPU Offload currently only supports CUDA & XPU |"
    assert failed in printed


def test_residences_end_at_the_same_loss(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "found.json"
    rows = "octavo stream,octavo host,octavo 8bit"
    table(script, monkeypatch, "--rows", rows, "--skip", "compiled", "--json", str(file))
    found = json.loads(file.read_text())["rows"]
    assert [row for row in found if "error" in row] == []
    losses: dict[tuple[str, str], set[float]] = {}
    for row in found:
        rows, _, name = row["row"].partition(": ")
        losses.setdefault((rows, "4bit" if "4bit" in name else "8bit"), set()).add(row["loss"])
    assert {key: len(values) for key, values in losses.items()} == dict.fromkeys(losses, 1)
    assert len(found) == 18


def test_the_wrapper_steps_as_torch_does(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "found.json"
    table(script, monkeypatch, "--rows", "bf16: none torch,CPUOffload", "--json", str(file))
    found = json.loads(file.read_text())["rows"]
    assert [row["loss"] for row in found] == [pytest.approx(found[0]["loss"], abs=1e-4)] * 3


def test_deepspeed_is_skipped_where_it_is_not_installed(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    table(script, monkeypatch, "--rows", "deepspeed")
    assert "| bf16: deepspeed ZeRO-Offload | skipped: ModuleNotFoundError: " in capsys.readouterr().out


FAKE_DEEPSPEED = """
import os
import torch

class Engine(torch.nn.Module):
    def __init__(self, net, params, lr):
        super().__init__()
        self.net, self.optimizer, self.order = net, torch.optim.AdamW(params, lr=lr, fused=True), []

    def forward(self, images):
        self.order.append("forward")
        return self.net(images)

    def backward(self, loss):
        self.order.append("backward")
        loss.backward()

    def step(self):
        assert self.order == ["forward", "backward"]
        self.order.clear()
        self.optimizer.step()
        self.optimizer.zero_grad()

def initialize(model, model_parameters, config):
    zero = config["zero_optimization"]
    assert (zero["stage"], zero["offload_optimizer"]["device"]) == (2, "cpu")
    assert config["bf16"]["enabled"] and config["train_micro_batch_size_per_gpu"] == 1
    assert os.environ["WORLD_SIZE"] == "1" and os.environ["MASTER_PORT"]
    assert config["gradient_clipping"] in (0.0, 1.0)
    return Engine(model, model_parameters, config["optimizer"]["params"]["lr"]), None, None, None
"""


def test_deepspeed_from_a_folder_steps_by_its_engine(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    for name in ("DS_ACCELERATOR", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")  # so that the variables that the row sets are removed
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed/__init__.py").write_text(FAKE_DEEPSPEED)
    file = tmp_path / "found.json"
    rows = [
        "--rows",
        "bf16: none torch,bf16: deepspeed,clip: deepspeed",
        "--deepspeed",
        str(tmp_path),
        "--json",
        str(file),
    ]
    table(script, monkeypatch, *rows)
    monkeypatch.delitem(sys.modules, "deepspeed")
    found = {row["row"]: row["loss"] for row in json.loads(file.read_text())["rows"]}
    assert found["bf16: deepspeed ZeRO-Offload"] == found["bf16: none torch fused"]
    assert "bf16 clip: deepspeed ZeRO-Offload" in found


def test_every_row_can_be_made(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps all optimizers except torchao's wrapper, which needs a GPU, and DeepSpeed's engine."""
    for name, setup in script.ROWS.items():
        if "torchao" in name or setup.make is None:
            continue
        net = torch.nn.Linear(64, 64, dtype=torch.float32 if setup.amp else torch.bfloat16)
        optimizer = setup.make(net.parameters(), 1e-4)
        before = net.weight.detach().clone()
        net(torch.ones(1, 64, dtype=net.weight.dtype)).sum().backward()
        optimizer.step()
        getattr(optimizer, "wait", lambda: None)()
        assert not torch.equal(before, net.weight), name


def test_llama_has_the_size_of_its_name(script: Any) -> None:
    module = importlib.import_module("llama")
    options = script.argparse.Namespace(**module.SIZES, device="meta")
    made = module.model(options)
    assert sum(param.numel() for param in made.parameters()) == 1_038_682_112


def test_a_tiny_llama_runs(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(importlib.import_module("llama"), "TOKENS", 16)
    file = tmp_path / "found.json"
    rows = ["--rows", "bf16: none torch,bf16: none octavo 8bit", "--model", "llama", "--json", str(file)]
    table(script, monkeypatch, *rows)
    theirs, ours = (row["loss"] for row in json.loads(file.read_text())["rows"])
    assert ours == pytest.approx(theirs, abs=1e-2)
    assert 9 < theirs < 12  # the logarithm of 32,000 words is 10.4


def test_sizes_are_those_of_the_model(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for model, batch in (("vit-g", 32), ("llama", 4)):
        monkeypatch.setattr(sys, "argv", ["offload.py", "--list", "--model", model])
        assert script.parse_options().batch == batch


def test_the_ablations_have_plain_torchao(script: Any) -> None:
    for name in ("bf16", "bf16 compiled", "amp eager"):
        assert {"none torch fused", "torchao", "torchao + offload_gradients"} <= set(script.SETS[name])


def test_a_trace_has_the_layers(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    rows = ["--rows", "bf16: none octavo 8bit", "--trace", str(tmp_path)]
    table(script, monkeypatch, *rows, "--layers", "2")
    (file,) = tmp_path.iterdir()
    events = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
    once = ["forward 0", "forward 1", "backward", "backward 1", "backward 0"]
    assert [event["name"] for event in events] == 2 * once
    assert all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in itertools.pairwise(events))


def test_every_set_has_rows(script: Any) -> None:
    assert {name.partition(":")[0] for name in script.ROWS} == set(script.SETS)
    assert script.ROWS["bf16: octavo stream 8bit + attach"].attach
    assert script.ROWS["bf16 clip: none torch fused"].clip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rows", "sgd"], "--rows: 'sgd' leaves no row; --list prints them. Sets: bf16, bf16 clip"),
        (["--repeat", "0"], "--repeat: got 0, expected at least 1"),
        (["--warm-up", "0"], "--warm-up: got 0, expected at least 1"),
    ],
)
def test_wrong_options_are_named(
    script: Any,
    options: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["offload.py", *TINY, *options])
    with pytest.raises(SystemExit):
        script.main()
    assert words in capsys.readouterr().err


def test_the_list_of_rows(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["offload.py", "--list", "--rows", "compiled"])
    assert script.main() == 0
    names = capsys.readouterr().out.splitlines()
    assert names[0] == "bf16 compiled: none torch fused"
    assert len(names) == 6


def test_host_memory_is_read(script: Any) -> None:
    held, free = script.host_bytes()
    kept = bytearray(b"x") * (64 << 20)
    assert script.host_bytes()[0] - held > len(kept) // 2
    assert free > 0
