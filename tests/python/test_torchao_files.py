"""torchao's optimizer checkpoints through torch.load(weights_only=True) without torchao: by stand-in classes.

The reading process cannot import torchao. The files come from classes that are pickled as torchao's are, and
from torchao itself where it is installed.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import Any

import peer_dicts as dicts
import peers
import pytest
import torch
from octavo.checkpoint import torchao_classes, torchao_files
from octavo.checkpoint.importers import read_peer_state
from octavo.checkpoint.torchao_files import OptimState8bit

TESTS = pathlib.Path(__file__).resolve().parent
PACKAGE = pathlib.Path(torchao_files.__file__).parents[2]  # the one under test
MODULES = {"8bit": "subclass_8bit", "4bit": "subclass_4bit", "fp8": "subclass_fp8"}
SHAPE = (32, 256)

WRITER = """
import sys, types
import torch
import peer_dicts as dicts
import peers
from test_torchao_files import MODULES, SHAPE

for package, path in zip(sys.argv[1::2], sys.argv[2::2]):
    entries = {}
    for number, (state, module) in enumerate(MODULES.items()):
        kind = dicts.torchao_class(state)
        kind.__module__ = f"{package}.{module}"
        parts = kind.__module__.split(".")
        for end in range(1, len(parts) + 1):  # pickle looks a class up where it says that it comes from
            sys.modules[".".join(parts[:end])] = types.ModuleType(".".join(parts[:end]))
        setattr(sys.modules[kind.__module__], kind.__name__, kind)
        entries[number] = {"step": torch.tensor(3.0)}
        for name in ("exp_avg", "exp_avg_sq"):
            values, _ = dicts.torchao_parts(state, name == "exp_avg", SHAPE, 256, seed=number)
            entries[number][name] = dicts.torchao_state(state, SHAPE, values, kind)
    group = {"lr": torch.tensor(1e-3), "betas": (0.9, 0.999), "params": [0, 1, 2]}
    torch.save({"state": entries, "param_groups": [group]}, path)
"""

READER = """
import sys
sys.modules["torchao"] = None  # as if it were not installed
import torch
from octavo.checkpoint.importers import read_peer_state
from octavo.checkpoint.torchao_files import torchao_classes

for path, out in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        torch.load(path, weights_only=True)
        sys.exit("torch.load knows the classes without being told")
    except Exception as error:
        assert "Unsupported" in str(error) or "weights_only" in str(error).lower(), error
    with torchao_classes():
        saved = torch.load(path, weights_only=True, map_location="cpu")
    try:
        torch.load(path, weights_only=True)
        sys.exit("the classes are still allowed")
    except Exception:
        pass
    read = {}
    for number, entry in saved["state"].items():
        state = read_peer_state(entry, tuple(entry["exp_avg"].shape), "adam")
        read[number] = {name: (moment.format, moment.values(), moment.codes, moment.scales)
                        for name, moment in state.moments.items()}
    torch.save(read, out)
"""


def run(script: str, *arguments: str) -> None:
    """In a process of its own: what stands for torchao there does not stay here."""
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE}{os.pathsep}{TESTS}"}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def read_elsewhere(*paths: pathlib.Path) -> list[dict[int, Any]]:
    outs = [path.with_suffix(".read") for path in paths]
    run(READER, *(str(word) for pair in zip(paths, outs, strict=True) for word in pair))
    return [torch.load(out, weights_only=True) for out in outs]


def test_files_without_torchao(tmp_path: pathlib.Path) -> None:
    """As torchao names its classes now, and as it did when they were a prototype."""
    files = {"torchao.optim": "now.pt", "torchao.prototype.low_bit_optim": "before.pt"}
    run(WRITER, *(word for package, name in files.items() for word in (package, str(tmp_path / name))))
    for read in read_elsewhere(*(tmp_path / name for name in files.values())):
        assert list(read) == [0, 1, 2]
        for number, state in enumerate(MODULES):
            assert list(read[number]) == ["exp_avg", "exp_avg_sq"]
            for name, (kept, values, codes, scales) in read[number].items():
                parts, right = dicts.torchao_parts(state, name == "exp_avg", SHAPE, 256, seed=number)
                assert kept == state
                assert dicts.same_bits(values, right)
                assert torch.equal(codes.view(torch.uint8), parts["codes"].view(torch.uint8))
                assert dicts.same_bits(scales, parts["scale"])


def test_files_of_torchao(tmp_path: pathlib.Path) -> None:
    peers.need("torchao")
    optim = importlib.import_module("torchao.optim")
    made = {}
    for name in ("AdamW8bit", "AdamW4bit", "AdamWFp8"):
        params = [torch.nn.Parameter(torch.randn(shape).bfloat16()) for shape in ((64, 128), (7,))]
        optimizer = getattr(optim, name)(params)
        with torch.compiler.set_stance("force_eager"):
            for _ in range(2):
                for param in params:
                    param.grad = torch.randn_like(param)
                optimizer.step()
        path = tmp_path / f"{name}.pt"
        torch.save(optimizer.state_dict(), path)
        made[path] = [optimizer.state[param] for param in params]
    for (path, live), read in zip(made.items(), read_elsewhere(*made), strict=True):
        assert list(read) == [0, 1]
        for number, state in enumerate(live):
            for moment in ("exp_avg", "exp_avg_sq"):
                right = state[moment].dequantize() if number == 0 else state[moment].float()
                assert dicts.same_bits(read[number][moment][1], right)
        with torchao_classes():  # where it is installed, its own classes are loaded
            own = torch.load(path, weights_only=True)["state"][0]["exp_avg"]
        assert type(own) is type(live[0]["exp_avg"])


def stand_in() -> tuple[Any, torch.Tensor]:
    parts, values = dicts.torchao_parts("8bit", True, SHAPE, 256)
    return dicts.torchao_state("8bit", SHAPE, parts, OptimState8bit), values


def test_stand_in_is_copied_whole() -> None:
    """What code around a load does to tensors: deep copies, casts for show, detaching."""
    original, values = stand_in()
    copies = [copy.deepcopy(original), original.detach(), original.clone(), original.to(torch.float32)]
    copies.append(original.to("cpu", torch.float16))
    for each in copies:
        assert type(each) is OptimState8bit
        state = read_peer_state({"step": 1, "exp_avg": each}, SHAPE, "lion")
        assert state is not None
        assert dicts.same_bits(state.moments["exp_avg"].values(), values)
    assert copies[-1].dtype == torch.float16
    assert copies[0].codes.data_ptr() != original.codes.data_ptr()
    assert "OptimState8bit" in repr(original)


def test_stand_in_has_no_values() -> None:
    with pytest.raises(NotImplementedError, match="loaded without torchao"):
        stand_in()[0].add(1)


def test_classes_are_torchaos_where_installed() -> None:
    kinds = torchao_files._classes()
    installed = importlib.util.find_spec("torchao") is not None
    assert {path.split(".")[1] for path in kinds} == set(dicts.CLASS_NAMES.values())
    assert all(kind.__module__.startswith("torchao.") == installed for kind in kinds.values())
