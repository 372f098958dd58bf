"""Torch's defaults belong to the program: the bytes do not depend on them.

The whole suite can run under other defaults too: see ambient.py, and python_defaults in tests/CMakeLists.txt.
"""

from __future__ import annotations

import ast
import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import octavo
import peer_dicts as dicts
import pytest
import torch
from models import STATES, clones, frozen, gradients, same_params, train, trained
from octavo import _codec, optim
from torch.nn import Parameter

FACTORIES = {
    *(
        "arange",
        "as_tensor",
        "asarray",
        "empty",
        "empty_permuted",
        "empty_strided",
        "eye",
        "full",
        "linspace",
    ),
    *("logspace", "ones", "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros"),
    *("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"),
}


def unnamed_factories(source: str) -> list[int]:
    """Lines of the calls that make a tensor and leave its dtype or its device to a default."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    found = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in FACTORIES]
    return [call.lineno for call in found if not {"dtype", "device"} <= {word.arg for word in call.keywords}]


def test_every_allocation_names_dtype_and_device() -> None:
    """A buffer of another type than the core expects is written past its end."""
    sources = sorted(pathlib.Path(octavo.__file__).parent.rglob("*.py"))
    assert len(sources) > 20
    places = {path.name: unnamed_factories(path.read_text()) for path in sources}
    assert {name: lines for name, lines in places.items() if lines} == {}


def test_the_scan_sees_what_it_looks_for() -> None:
    assert unnamed_factories("torch.zeros(3)\ntorch.ones(1, dtype=t)\nx.new_zeros(1, device=d)") == [1, 2, 3]
    assert unnamed_factories("torch.empty(3, dtype=t, device=d)\ntorch.zeros_like(x)\nzeros(3)") == []


@contextlib.contextmanager
def defaults(dtype: torch.dtype, device: str) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


OTHERS = [(torch.bfloat16, "cpu"), (torch.float16, "cpu"), (torch.float64, "cpu"), (torch.float32, "meta")]


@pytest.mark.parametrize(("dtype", "where"), OTHERS, ids=str)
def test_the_codec(dtype: torch.dtype, where: str) -> None:
    values = torch.rand(4096, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    for state in STATES:
        codes, scales = _codec.encode("second", state, values)
        plain = _codec.decode("second", state, codes, scales, (4096,))
        with defaults(dtype, where):
            again = _codec.encode("second", state, values)
            decoded = _codec.decode("second", state, codes, scales, (4096,))
        assert frozen(again) == frozen((codes, scales))
        assert frozen(decoded) == frozen(plain)


@pytest.mark.parametrize(("dtype", "where"), OTHERS, ids=str)
def test_a_run_and_its_checkpoints(dtype: torch.dtype, where: str) -> None:
    """Steps, our state dict, the portable one, torch's and bitsandbytes' loaded."""
    options: dict[str, Any] = {"state": "8bit", "master": 24, "skip_nonfinite": True, "clip_grad_norm": 1.0}
    params, plain = trained("cpu", dtype=torch.bfloat16, **options)
    again, masters = clones(params), plain.master_parameters()
    other = optim.AdamW(again, **options)
    steps = gradients(params, 2, seed=9)
    with defaults(dtype, where):
        other.load_state_dict(plain.state_dict())
        assert frozen(list(other.master_parameters().values())) == frozen(list(masters.values()))
        train(other, again, steps)
    train(plain, params, steps)
    assert same_params(params, again)
    assert frozen(other.state_dict()) == frozen(plain.state_dict())
    with defaults(dtype, where):
        portable = other.portable_state_dict()
    assert frozen(portable) == frozen(plain.portable_state_dict())
    torchs = torch.optim.AdamW(clones(params))
    torchs.load_state_dict(portable)
    with defaults(dtype, where):
        other.load_state_dict(torchs.state_dict())
    plain.load_state_dict(torchs.state_dict())
    assert frozen(other.state_dict()) == frozen(plain.state_dict())


def peers_entries() -> list[dict[str, Any]]:
    """torchao's, bitsandbytes' and flashoptim's, with maps and blocks that are not ours: they are decoded."""
    shape, moments = (16, 256), {"exp_avg": True, "exp_avg_sq": False}
    out: list[dict[str, Any]] = []
    for state in ("8bit", "4bit", "fp8"):
        parts = {name: dicts.torchao_parts(state, signed, shape, 16)[0] for name, signed in moments.items()}
        if state == "fp8":  # no sign
            parts["exp_avg_sq"]["codes"].view(torch.uint8).bitwise_and_(127)
        out.append({name: dicts.torchao_state(state, shape, parts[name]) for name in moments})
    theirs = {**dicts.bitsandbytes_parts(1, shape, 256)[0], **dicts.bitsandbytes_parts(2, shape, 256)[0]}
    out.append({**theirs, "qmap1": theirs["qmap1"] * 0.5})
    flash = [dicts.flashoptim_parts(name, signed, shape)[0] for name, signed in moments.items()]
    out.append({**flash[0], **flash[1]})
    return [{"step": 3, **entry} for entry in out]


@pytest.mark.parametrize(("dtype", "where"), OTHERS, ids=str)
def test_peers_dicts(dtype: torch.dtype, where: str) -> None:
    for entry in peers_entries():
        loaded = []
        for choose in (contextlib.nullcontext(), defaults(dtype, where)):
            optimizer = optim.AdamW4bit([Parameter(torch.zeros(16, 256, dtype=torch.float32))])
            saved = {**optimizer.state_dict(), "state": {0: entry}}
            with choose:
                optimizer.load_state_dict(saved)
            loaded.append(frozen(optimizer.state_dict()))
        assert loaded[0] == loaded[1]
