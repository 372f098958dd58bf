"""The importers against the libraries themselves, on the CPU: their own dequantized values, in bits.

flashoptim needs Triton; without a GPU conftest.py chooses its interpreter.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from octavo import optim
from octavo._describe import algorithms
from octavo.checkpoint.importers import read_peer_state
from octavo.checkpoint.saved import SavedState
from peer_dicts import same_bits
from peers import need

ADAM, SGD, LION = "adam", "sgd", "lion"


def train(make: Callable[..., Any], params: list[torch.nn.Parameter], steps: int = 3, **options: Any) -> Any:
    optimizer = make(params, **options)
    with torch.compiler.set_stance("force_eager"):
        for _ in range(steps):
            for param in params:
                scale = 10.0 ** torch.linspace(-6, 0, param.numel()).view_as(param)
                param.grad = (torch.randn(param.shape) * scale).to(param.dtype)
            optimizer.step()
    return optimizer


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]


def read(saved: dict[str, Any], number: int, shape: Any, algorithm: str) -> SavedState:
    state = read_peer_state(saved["state"][number], tuple(shape), algorithm, saved["param_groups"][0])
    assert state is not None
    assert state.ignored == ()
    return state


# --- torchao ---------------------------------------------------------------------------------------------


def torchao_module(name: str = "") -> Any:
    need("torchao")
    return importlib.import_module(f"torchao.optim.{name}".rstrip("."))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "state", "block"),
    [
        ("AdamW8bit", "8bit", 256),
        ("AdamW4bit", "4bit", 128),
        ("AdamWFp8", "fp8", 256),
        ("Adam8bit", "8bit", 2048),
    ],
)
def test_torchao(name: str, state: str, block: int, dtype: torch.dtype) -> None:
    theirs = torchao_module()
    params = parameters((64, 128), (10, 10), (4097,), dtype=dtype)  # the last two stay plain
    optimizer = train(getattr(theirs, name), params, block_size=block)
    saved = optimizer.state_dict()
    for number, param in enumerate(params):
        result = read(saved, number, param.shape, ADAM)
        assert result.step == 3
        assert set(result.moments) == {"exp_avg", "exp_avg_sq"}
        for key, moment in result.moments.items():
            live = optimizer.state[param][key]
            if number > 0:
                assert moment.format == ("fp32" if dtype == torch.float32 else "bf16")
                assert same_bits(moment.values(), live.float())
                continue
            assert same_bits(moment.values(), live.dequantize())
            taken = moment.bytes_in_format(state, block)
            assert taken is not None, "torch on this machine makes other maps than ours: no FMA?"
            assert torch.equal(taken[0].view(torch.uint8), live.codes.view(torch.uint8))
            assert taken[1] is not None
            assert torch.equal(taken[1], live.scale)


@pytest.mark.parametrize("name", ["OptimState8bit", "OptimState4bit", "OptimStateFp8"])
def test_torchao_fresh(name: str) -> None:
    module = torchao_module(f"subclass_{name.removeprefix('OptimState').lower()}")
    for key, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        options = {} if name == "OptimStateFp8" else {"signed": signed}
        fresh = getattr(module, name).zeros((32, 256), **options)
        state = read_peer_state({"step": torch.tensor(0.0), key: fresh}, (32, 256), ADAM)
        assert state is not None
        assert same_bits(state.moments[key].values(), fresh.dequantize())


def test_torchao_map_of_another_machine() -> None:
    """A state whose map was built without FMA: decoded with its own map, as torchao does."""
    module = torchao_module("subclass_8bit")
    params = parameters((64, 128))
    optimizer = train(torchao_module().AdamW8bit, params)
    live = optimizer.state[params[0]]["exp_avg"]
    qmap = live.qmap.clone()
    qmap[100:140] = torch.nextafter(qmap[100:140], torch.ones(40))
    other = module.OptimState8bit(live.codes, live.scale, qmap, True)
    state = read_peer_state({"step": 1, "exp_avg": other}, (64, 128), LION)
    assert state is not None
    assert state.moments["exp_avg"].bytes_in_format("8bit") is None
    assert same_bits(state.moments["exp_avg"].values(), other.dequantize())
    assert not same_bits(other.dequantize(), live.dequantize())


# --- bitsandbytes ----------------------------------------------------------------------------------------


def dequantize(codes: torch.Tensor, absmax: torch.Tensor, qmap: torch.Tensor, block: int) -> torch.Tensor:
    functional = need("bitsandbytes").functional
    values: torch.Tensor = functional.dequantize_blockwise(A=codes, absmax=absmax, code=qmap, blocksize=block)
    return values


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    ("name", "options", "group", "names"),
    [
        ("AdamW8bit", {}, ADAM, ("exp_avg", "exp_avg_sq")),
        ("Adam8bit", {}, ADAM, ("exp_avg", "exp_avg_sq")),
        ("Lion8bit", {}, LION, ("exp_avg",)),
        ("SGD8bit", {"lr": 0.1, "momentum": 0.9}, SGD, ("momentum_buffer",)),
        ("AdamW32bit", {}, ADAM, ("exp_avg", "exp_avg_sq")),
        ("SGD32bit", {"lr": 0.1, "momentum": 0.9}, SGD, ("momentum_buffer",)),
    ],
)
def test_bitsandbytes(
    name: str, options: dict[str, Any], group: str, names: tuple[str, ...], flat: bool
) -> None:
    bnb = need("bitsandbytes")
    params = parameters((64, 128), (50, 101), (10, 10))  # whole blocks, a tail, below min_8bit_size
    optimizer = train(getattr(bnb.optim, name), params, **options)
    saved = optimizer.state_dict()
    if flat:  # as before 0.49.2
        saved["state"] = {number: dict(optimizer.state[param]) for number, param in enumerate(params)}
    for number, param in enumerate(params):
        result, live = read(saved, number, param.shape, group), optimizer.state[param]
        assert result.step == 3
        assert tuple(result.moments) == names
        for slot, key in enumerate(names, start=1):
            moment, codes = result.moments[key], live[f"state{slot}"]
            if codes.dtype == torch.float32:
                assert name.endswith("32bit") or number == 2
                assert moment.format == "fp32"
                assert same_bits(moment.values(), codes)
                continue
            assert same_bits(
                moment.values(), dequantize(codes, live[f"absmax{slot}"], live[f"qmap{slot}"], 256)
            )
            taken = moment.bytes_in_format("8bit", 256)
            assert taken is not None, "torch on this machine makes other maps than ours: no FMA?"
            assert torch.equal(taken[0], codes)
            assert taken[1] is not None
            assert torch.equal(taken[1], live[f"absmax{slot}"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RMSprop8bit", {}),
        ("RMSprop32bit", {}),
        ("Adagrad8bit", {}),
        ("LARS8bit", {"lr": 0.1, "momentum": 0.9}),
        ("LARS32bit", {"lr": 0.1, "momentum": 0.9}),
        ("LAMB8bit", {}),
        ("AdEMAMix8bit", {}),
        ("AdEMAMix", {"t_alpha": 5, "t_beta3": 5}),
    ],
    ids=str,
)
def test_bitsandbytes_by_the_descriptions(name: str, options: dict[str, Any]) -> None:
    """Where each moment lies is what the description says; signed codes of a second moment are decoded."""
    bnb = need("bitsandbytes")
    title = name.removesuffix("8bit").removesuffix("32bit")
    described = next(a for a in algorithms().values() if a.title == title)
    params = parameters((64, 128), (50, 101), (10, 10))
    optimizer = train(getattr(bnb.optim, name), params, **options)
    saved = optimizer.state_dict()
    for number, param in enumerate(params):
        result, live = read(saved, number, param.shape, described.name), optimizer.state[param]
        assert result.step == 3
        slots = described.slots(0)
        assert set(result.moments) == {slot.name for slot in slots}
        for slot in slots:
            key, part = slot.peer[:6], slot.peer[7:8]
            moment, codes = result.moments[slot.name], live[key]
            absmax, qmap = live.get(f"absmax{key[-1]}"), live.get(f"qmap{key[-1]}")
            if part:
                codes, absmax = codes[int(part)], None if absmax is None else absmax[int(part)]
            if codes.dtype == torch.float32:
                assert same_bits(moment.values(), codes)
                continue
            assert same_bits(moment.values(), dequantize(codes, absmax, qmap, 256))
            signed = bool(qmap[0] < 0)
            assert (moment.bytes_in_format("8bit", 256) is not None) == (signed == (slot.moment == "first"))
        mine = getattr(optim, name)(parameters(tuple(param.shape)), **options)
        taken = {**saved, "state": {0: saved["state"][number]}}
        taken["param_groups"] = [{**saved["param_groups"][0], "params": [0]}]
        mine.load_state_dict(taken)
        for key in ("lr", "eps", "weight_decay", *options):
            if key in mine.param_groups[0]:
                assert mine.param_groups[0][key] == optimizer.param_groups[0].get(key, options.get(key))
        first = mine.param_groups[0].get("alpha" if title == "RMSprop" else "momentum")
        if first is not None and title in ("RMSprop", "LARS"):
            assert first == optimizer.param_groups[0]["betas"][0]


def test_bitsandbytes_old_blocks() -> None:
    functional = need("bitsandbytes").functional
    entry: dict[str, Any] = {"step": 5}
    right = {}
    for slot, key in ((1, "exp_avg"), (2, "exp_avg_sq")):
        x = torch.randn(70, 101) if slot == 1 else torch.rand(70, 101)
        qmap = functional.create_dynamic_map(signed=slot == 1)
        codes, state = functional.quantize_blockwise(x, code=qmap, blocksize=2048)
        entry |= {f"state{slot}": codes, f"absmax{slot}": state.absmax, f"qmap{slot}": qmap}
        right[key] = dequantize(codes, state.absmax, qmap, 2048)
    result = read_peer_state(entry, (70, 101), ADAM)
    assert result is not None
    for key, moment in result.moments.items():
        assert (moment.format, moment.block_size) == ("8bit", 2048)
        assert same_bits(moment.values(), right[key])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("AdEMAMix8bit", "two first moments"),
        ("RMSprop8bit", "eps=1e-08: it is a second moment"),
        ("Adagrad8bit", "eps=1e-10: it is a second moment"),
        ("LAMB8bit", "keeps state1 and state2 here, but state1 for Lion"),
    ],
)
def test_bitsandbytes_that_cannot_be_continued(name: str, message: str) -> None:
    bnb = need("bitsandbytes")
    saved = train(getattr(bnb.optim, name), parameters((64, 128)), steps=1).state_dict()
    with pytest.raises(ValueError, match=message):
        read(saved, 0, (64, 128), LION)


# --- flashoptim ------------------------------------------------------------------------------------------


def flashoptim() -> Any:
    need("flashoptim")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("on a GPU: these tensors are on the CPU, where the kernels need TRITON_INTERPRET=1")
    return importlib.import_module("flashoptim.optimizers")


@pytest.mark.parametrize("name", ["FlashAdamW", "FlashLion", "FlashSGD"])
def test_flashoptim_unquantized(name: str) -> None:
    module = flashoptim()
    params = parameters((64, 65), dtype=torch.bfloat16)
    options = {"quantize": False, "master_weight_bits": None, "fused": False}
    if name == "FlashSGD":
        options["momentum"] = 0.9
    optimizer = train(getattr(module, name), params, **options)
    group = SGD if name == "FlashSGD" else ADAM
    result = read(optimizer.state_dict(), 0, (64, 65), group)
    assert result.step == (3 if name == "FlashAdamW" else 1)
    for key, moment in result.moments.items():
        assert same_bits(moment.values(), optimizer.state[params[0]][key].materialize().float())
    expected = {"FlashAdamW": {"exp_avg", "exp_avg_sq"}, "FlashSGD": {"momentum_buffer"}}
    assert set(result.moments) == expected.get(name, {"exp_avg"})


@pytest.mark.parametrize("numel", [1000, 4096])
def test_flashoptim_quantized(numel: int) -> None:
    """Its kernels, called as its optimizers do (which ask for a GPU) but without the autotuner."""
    module = flashoptim()
    torch.manual_seed(0)
    m = torch.randn(numel) * 10.0 ** torch.linspace(-5, 1, numel)
    entry: dict[str, Any] = {"step": torch.tensor(4)}
    right = {}
    for key, x, signed in (("exp_avg", m, True), ("exp_avg_sq", m * m, False)):
        codes = torch.empty(numel, dtype=torch.int8 if signed else torch.uint8)
        scales, out = torch.empty(-(-numel // 32), dtype=torch.float16), torch.empty(numel)
        largest, kind = (127.0, module.tl.int8) if signed else (255.0, module.tl.uint8)
        module._triton_quantize_kernel.fn[(1,)](
            x, codes, scales, numel, largest, kind, 32, not signed, signed, BLOCK_SIZE_N=256
        )
        module._triton_dequantize_kernel.fn[(1,)](
            codes, scales, out, numel, largest, 32, not signed, signed, BLOCK_SIZE_N=256
        )
        entry |= {f"{key}::quantized": codes, f"{key}::scales": scales.view(torch.bfloat16)}
        right[key] = out
    result = read_peer_state(entry, (numel,), ADAM)
    assert result is not None
    for key, moment in result.moments.items():
        assert same_bits(moment.values(), right[key])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "largest"), [(torch.int8, 127), (torch.int16, 32767)])
def test_flashoptim_masters(
    dtype: torch.dtype, kind: torch.dtype, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = flashoptim()
    monkeypatch.setattr(module, "_get_sm_count", lambda *_: 1)
    torch.manual_seed(0)
    # Normal numbers only: Triton's interpreter reads a subnormal bf16 wrong.
    weights = (torch.randn(1000) * 10.0 ** torch.linspace(-2, 2, 1000)).to(dtype)
    errors = torch.randint(-largest, largest + 1, weights.shape).to(kind)
    entry = {"step": 1, "exp_avg": torch.zeros(1000), "error_bits": errors}
    result = read_peer_state(entry, (1000,), LION)
    assert result is not None
    master = result.master(weights)
    assert master is not None
    assert same_bits(master, module.reconstruct_fp32_param(weights, errors))
