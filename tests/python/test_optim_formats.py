"""Which format a parameter's state has: by group, by name pattern, by override, by size; and its bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import STATES, frozen, gradients, make_params, same_params, small_model, train
from octavo import optim

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "8bit": torch.uint8,
    "4bit": torch.uint8,
    "4bit-rank1": torch.uint8,
    "fp8": torch.float8_e4m3fn,
    "fp8-e5m2": torch.float8_e5m2,
}


def blocks(count: int, size: int) -> int:
    return -(-count // size)


def documented_bytes(state: str, shape: tuple[int, ...], block: int) -> dict[str, int]:
    """docs/formats.md: bytes of m and of v, codes and scales."""
    count = torch.Size(shape).numel()
    wide = {"fp32": 4 * count, "bf16": 2 * count}
    if state in wide:
        return {"m": wide[state], "v": wide[state]}
    if state.startswith("4bit"):
        m = (count + 1) // 2 + 4 * blocks(count, block)
        rank1 = (count + 1) // 2 + 4 * sum(shape)
        if state == "4bit/8bit":
            return {"m": m, "v": count + 4 * blocks(count, block)}
        return {"m": m, "v": rank1 if state == "4bit-rank1" and len(shape) > 1 else m}
    bits = {"fp4": 4, "fp3": 3}.get(state, 8)
    return dict.fromkeys("mv", -(-count * bits // 8) + 4 * blocks(count, block))


# --- Bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("shape", [(64, 64), (4097,), (3, 37, 41), (4095,)])
@pytest.mark.parametrize("block", [None, 64, 2048])
def test_state_bytes(block: int | None, shape: tuple[int, ...], state: str, device: str) -> None:
    size = block or (128 if state.startswith(("4bit", "fp4", "fp3")) else 256)
    kept = "fp32" if state != "bf16" and torch.Size(shape).numel() < 4096 else state
    expected = documented_bytes(kept, shape, size)
    for name, options, wanted in (
        ("AdamW", {}, expected["m"] + expected["v"]),
        ("AdamW", {"amsgrad": True}, expected["m"] + 2 * expected["v"]),
        ("Lion", {}, expected["m"]),
        ("SGD", {"momentum": 0.9}, expected["m"]),
        ("SGD", {}, 0),
    ):
        (param,) = make_params([shape], device)
        optimizer = getattr(optim, name)([param], state=state, block_size=block, **options)
        assert optimizer.state_bytes() == 0  # made at the first step
        train(optimizer, [param], gradients([param], 1))
        assert optimizer.state_bytes() == wanted


@pytest.mark.parametrize(("master", "more"), [("native", 0), ("stochastic", 0), (24, 1), (32, 2)])
def test_master_bytes(master: Any, more: int, device: str) -> None:
    narrow = make_params([(64, 64), (17,)], device, torch.bfloat16)
    (wide,) = make_params([(64, 64)], device)
    optimizer = optim.AdamW8bit([*narrow, wide], master=master)
    train(optimizer, [*narrow, wide], gradients([*narrow, wide], 1))
    plain = 2 * (2 * 4096 + 8 * 16) + 8 * 17
    assert optimizer.state_bytes() == plain + more * (4096 + 17)  # an fp32 parameter keeps none


def test_shapes_and_dtypes(device: str) -> None:
    """As the checkpoints document them."""
    for state, dtype in DTYPES.items():
        (param,) = make_params([(33, 129)], device)
        optimizer = optim.AdamW([param], state=state)
        train(optimizer, [param], gradients([param], 1))
        entry = optimizer.state[param]
        packed = state.startswith("4bit")
        for name in ("exp_avg", "exp_avg_sq"):
            assert entry[name].dtype == dtype
            assert tuple(entry[name].shape) == ((2129,) if packed else (33, 129))
            assert entry[name].device == param.device
            assert (name + "_scale" in entry) == (state not in ("fp32", "bf16"))
        assert entry["step"].dtype == torch.int64
        assert entry["step"].dim() == 0


# --- By group, by size ----------------------------------------------------------------------------


def test_formats_per_group(device: str) -> None:
    """Each group steps as an optimizer of its own would; fp32 beside 8bit and 4bit in one."""
    settings: list[dict[str, Any]] = [
        {"state": "8bit"},
        {"state": "4bit", "block_size": 64},
        {"state": "8bit", "block_size": 2048, "lr": 0.1},
        {"state": "8bit", "min_quantized_size": 10**6},
        {"state": "fp8", "min_quantized_size": 1, "weight_decay": 0.3},
        {"state": "4bit-rank1", "betas": (0.5, 0.5)},
        {},
    ]
    params = [make_params(device=device, seed=i) for i in range(len(settings))]
    together = optim.AdamW([{"params": p, **s} for p, s in zip(params, settings, strict=True)], lr=1e-2)
    for index, setting in enumerate(settings):
        alone = make_params(device=device, seed=index)
        single = optim.AdamW(alone, **{"lr": 1e-2, **setting})
        steps = gradients(alone, 3)
        train(single, alone, steps)
        if index == 0:
            flat = [p for group in params for p in group]
            train(together, flat, [step * len(settings) for step in steps])
        assert same_params(params[index], alone), setting
        for a, b in zip(params[index], alone, strict=True):
            assert frozen(together.state[a]) == frozen(single.state[b])
    assert together.state[params[3][0]]["exp_avg"].dtype == torch.float32
    assert together.state[params[4][2]]["exp_avg"].dtype == torch.float8_e4m3fn


def test_masters_per_group(device: str) -> None:
    masters = ("native", "stochastic", 24, 32)
    params = [make_params([(20,)], device, torch.bfloat16)[0] for _ in masters]
    optimizer = optim.AdamW([{"params": [p], "master": m} for p, m in zip(params, masters, strict=True)])
    train(optimizer, params, gradients(params, 1))
    kept = [optimizer.state[p].get("master") for p in params]
    assert [None if k is None else k.dtype for k in kept] == [None, None, torch.int8, torch.int16]


@pytest.mark.parametrize(("size", "quantised"), [(4095, False), (4096, True)])
def test_small_parameters_keep_fp32(size: int, quantised: bool, device: str) -> None:
    (param,) = make_params([(size,)], device)
    optimizer = optim.AdamW8bit([param])
    train(optimizer, [param], gradients([param], 1))
    assert (optimizer.state[param]["exp_avg"].dtype == torch.uint8) is quantised


# --- By name --------------------------------------------------------------------------------------


def test_param_groups(device: str) -> None:
    model = small_model(device)
    groups = optim.param_groups(
        model,
        {"embed.*": "fp32", "head*": {"state": "4bit", "lr": 0.5}},
        weight_decay=0.1,
        no_decay=["*norm*", "*.bias"],
    )
    names = [group["param_names"] for group in groups]
    assert names == [
        ["block.proj.weight"],
        ["block.proj.bias", "block.norm.weight", "block.norm.bias"],
        ["embed.weight"],
        ["head.weight"],
    ]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0, 0.1, 0.1]
    optimizer = optim.AdamW8bit(groups)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    kept = {
        name: (optimizer.state[p]["exp_avg"].dtype, optimizer.state[p]["exp_avg"].dim())
        for name, p in model.named_parameters()
    }
    assert kept["embed.weight"] == (torch.float32, 2)
    assert kept["block.proj.weight"] == (torch.uint8, 2)
    assert kept["head.weight"] == (torch.uint8, 1)
    assert optimizer.param_groups[3]["lr"] == 0.5


def test_param_groups_first_match_and_frozen() -> None:
    model = small_model()
    model["head"].requires_grad_(False)
    groups = optim.param_groups(model.named_parameters(), {"*norm.weight": "bf16", "*norm*": "fp8"})
    assert [(g.get("state"), g["param_names"]) for g in groups] == [
        (None, ["embed.weight", "block.proj.weight", "block.proj.bias"]),
        ("bf16", ["block.norm.weight"]),
        ("fp8", ["block.norm.bias"]),
    ]
    with pytest.raises(ValueError, match=r"no parameter's name matches \['\*\.typo'\]"):
        optim.param_groups(model, {"*.typo": "fp32"})


def update_of_a_quiet_neighbour(state: str, large: bool) -> float:
    """The last update of an element, in units of lr, whose gradient has shrunk from 0.1 to 0.01 for 1,500
    steps. `large`: the first element of its block has a gradient of 1 all the time.
    """
    param = torch.nn.Parameter(torch.zeros(256, dtype=torch.float32))
    optimizer = optim.AdamW([param], lr=1.0, weight_decay=0.0, state=state, min_quantized_size=0)
    before = param.detach().clone()
    for size, steps in ((0.1, 300), (0.01, 1500)):
        param.grad = torch.full((256,), size, dtype=torch.float32)
        param.grad[0] = 1.0 if large else size
        for _ in range(steps):
            before.copy_(param.detach())
            optimizer.step()
    return float(before[1] - param.detach()[1])


def test_a_large_neighbour_keeps_second_moments_from_decaying() -> None:
    """A limit of 8-bit and fp8 states, as docs/guides/choose_a_format.md says it: a step makes v smaller by
    0.1%, which is less than half the distance to the next code, and the scale does not move, so v stays.
    """
    exact = update_of_a_quiet_neighbour("fp32", large=True)
    assert exact == pytest.approx(0.357, abs=0.001)
    assert update_of_a_quiet_neighbour("bf16", large=True) == pytest.approx(exact, rel=0.05)
    for state in ("8bit", "fp8"):
        assert 0.18 < update_of_a_quiet_neighbour(state, large=True) < 0.22
    assert update_of_a_quiet_neighbour("8bit", large=False) == pytest.approx(exact, rel=0.05)
