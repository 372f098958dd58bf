"""Entries of other libraries' state dicts, built by hand from their documented layout, through the importers.

Values must be right in bits and taken-over bytes the same bytes. The libraries themselves are asked in
test_importers_peers.py, where they are installed.
"""

from __future__ import annotations

import itertools
from typing import Any

import peer_dicts as dicts
import pytest
import torch
from octavo.checkpoint.importers import read_peer_state
from octavo.checkpoint.saved import SavedMoment, SavedState
from peer_dicts import same_bits

ADAM, SGD, LION = "adam", "sgd", "lion"
KINDS = {"exp_avg": "first", "momentum_buffer": "first", "exp_avg_sq": "second", "max_exp_avg_sq": "second"}


def read(
    entry: dict[str, Any], shape: tuple[int, ...], algorithm: str = ADAM, saved: Any = None
) -> SavedState:
    state = read_peer_state(entry, shape, algorithm, saved)
    assert state is not None
    assert {name: moment.moment for name, moment in state.moments.items()} == {
        name: KINDS[name] for name in state.moments
    }
    return state


def assert_values(moment: SavedMoment, values: torch.Tensor) -> None:
    got = moment.values()
    assert got.device.type == "cpu"
    assert got.is_contiguous()
    assert same_bits(got, values)


# --- torch.optim -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
@pytest.mark.parametrize(
    ("name", "options", "names"),
    [
        ("Adam", {}, {"exp_avg", "exp_avg_sq"}),
        ("AdamW", {"amsgrad": True}, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
        ("SGD", {"lr": 0.1, "momentum": 0.9}, {"momentum_buffer"}),
        ("SGD", {"lr": 0.1}, set()),
    ],
)
def test_torch(name: str, options: dict[str, Any], names: set[str], dtype: torch.dtype) -> None:
    param = torch.nn.Parameter(torch.randn(7, 5).to(dtype))
    optimizer = getattr(torch.optim, name)([param], **options)
    for _ in range(3):
        param.grad = torch.randn_like(param)
        optimizer.step()
    saved = optimizer.state_dict()
    entry = saved["state"].get(0, {"momentum_buffer": None})
    state = read(entry, (7, 5), name.lower(), saved["param_groups"][0])
    assert set(state.moments) == names
    assert state.step == (3 if name != "SGD" else len(names))
    for key, moment in state.moments.items():
        assert_values(moment, entry[key].float())
        kept = {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(dtype, "")
        assert moment.format == kept
        for target in ("fp32", "bf16", "8bit"):
            taken = moment.bytes_in_format(target)
            assert (taken is not None) == (target == kept)
            if taken is not None:
                assert torch.equal(taken[0], entry[key])
                assert taken[1] is None


def test_values_are_row_major() -> None:
    v = torch.rand(2, 3, 4, 5, dtype=torch.float32).to(memory_format=torch.channels_last)
    moment = read({"step": 1, "exp_avg": v}, (2, 3, 4, 5)).moments["exp_avg"]
    assert_values(moment, v.contiguous())
    assert moment.codes is not None
    assert moment.codes.is_contiguous()


@pytest.mark.parametrize(
    ("entry", "group", "step"),
    [
        ({"step": 7}, {}, 7),
        ({"step": 7.0}, {}, 7),
        ({"step": torch.tensor(7.0)}, {}, 7),
        ({"step": torch.tensor([7])}, {}, 7),
        ({"step": torch.tensor(7, dtype=torch.int64)}, {"step": 9}, 7),
        ({}, {"step": 9}, 9),  # apex
    ],
)
def test_step(entry: dict[str, Any], group: dict[str, Any], step: int) -> None:
    moments = {"exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3)}
    assert read({**entry, **moments}, (3,), ADAM, group).step == step


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"step": 1, "exp_avg": torch.zeros(3, 4)}, r"exp_avg has shape \(3, 4\), but .* has shape \(4, 3\)"),
        ({"step": 1, "exp_avg": torch.zeros(4, 3, dtype=torch.uint8)}, "exp_avg has dtype torch.uint8"),
        ({"step": 1, "exp_avg": [1.0]}, "exp_avg is a list"),
        ({"exp_avg": torch.zeros(4, 3), "exp_avg_sq": torch.zeros(4, 3)}, "step is missing"),
        ({"step": 1.5, "exp_avg": torch.zeros(4, 3)}, "step is 1.5"),
        ({"step": -1, "exp_avg": torch.zeros(4, 3)}, "step is -1"),
        ({"step": float("nan"), "exp_avg": torch.zeros(4, 3)}, "step is nan"),
        ({"step": torch.zeros(2), "exp_avg": torch.zeros(4, 3)}, r"step has shape \(2,\)"),
        ({"step": "1", "exp_avg": torch.zeros(4, 3)}, "step is a str"),
    ],
)
def test_torch_errors(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_peer_state(entry, (4, 3), ADAM)


def test_other_forms_are_left_to_the_caller() -> None:
    codes = torch.zeros(4, dtype=torch.uint8)
    assert read_peer_state({"step": 1, "exp_avg": codes, "exp_avg_scale": torch.zeros(1)}, (4,), ADAM) is None
    assert read_peer_state({}, (4,), ADAM) is None
    assert read_peer_state({"step": 3}, (4,), ADAM) is None
    assert read_peer_state({"step": 3, "hessian": torch.zeros(4)}, (4,), ADAM) is None


def test_unread_keys_are_named() -> None:
    """All but those of our own form, which another file reads."""
    own = {"master": torch.zeros(4, dtype=torch.int8)}
    entry = {"step": 3, "momentum_buffer": torch.zeros(4), "hessian": torch.zeros(4), **own}
    assert read(entry, (4,), SGD).ignored == ("hessian",)


def test_dtensor_is_read_locally() -> None:
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or distributed.is_initialized():
        pytest.skip("needs torch.distributed, not yet initialised")
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        parts, values = dicts.torchao_parts("8bit", True, (16, 256), 256)
        plain = torch.rand(16, 256, dtype=torch.float32)
        sharded = {**parts, "codes": DTensor.from_local(parts["codes"], mesh, [Shard(0)], run_check=False)}
        entry = {
            "step": 1,
            "exp_avg": dicts.torchao_state("8bit", (16, 256), sharded),
            "exp_avg_sq": DTensor.from_local(plain, mesh, [Shard(0)], run_check=False),
        }
        state = read(entry, (16, 256))
        assert_values(state.moments["exp_avg"], values)
        assert_values(state.moments["exp_avg_sq"], plain)
    finally:
        distributed.destroy_process_group()


# --- torchao ---------------------------------------------------------------------------------------------

TORCHAO = list(itertools.product(("8bit", "4bit", "fp8"), ("exp_avg", "exp_avg_sq")))


def torchao_moment(
    state: str, name: str, shape: tuple[int, ...], block: int, **changed: Any
) -> tuple[SavedMoment, dict[str, Any], torch.Tensor]:
    parts, values = dicts.torchao_parts(state, name == "exp_avg", shape, block)
    parts.update(changed)
    entry = {"step": torch.tensor(5.0), name: dicts.torchao_state(state, shape, parts)}
    saved = read(entry, shape, ADAM, {"step": 5})
    assert saved.step == 5
    return saved.moments[name], parts, values


@pytest.mark.parametrize("block", [64, 128, 256, 2048])
@pytest.mark.parametrize(("state", "name"), TORCHAO)
def test_torchao(state: str, name: str, block: int) -> None:
    moment, parts, values = torchao_moment(state, name, (32, 256), block)
    assert (moment.format, moment.block_size) == (state, block)
    assert_values(moment, values)
    for target, wanted in itertools.product(
        ("8bit", "4bit", "fp8", "fp32", "fp8-e5m2"), (64, 128, 256, 2048, 0)
    ):
        taken = moment.bytes_in_format(target, wanted)
        default = {"8bit": 256, "4bit": 128, "fp8": 256}[state]
        assert (taken is not None) == (target == state and (wanted or default) == block)
        if taken is not None and taken[1] is not None:
            assert taken[0].dtype == parts["codes"].dtype
            assert torch.equal(taken[0].view(torch.uint8), parts["codes"].view(torch.uint8))
            assert same_bits(taken[1], parts["scale"])


@pytest.mark.parametrize(("state", "name"), TORCHAO)
def test_torchao_block_that_is_not_ours(state: str, name: str) -> None:
    moment, _, values = torchao_moment(state, name, (1100, 960), 96)
    assert moment.format == ""
    assert moment.bytes_in_format(state, 128) is None
    assert_values(moment, values)


@pytest.mark.parametrize(("state", "name"), [pair for pair in TORCHAO if pair[0] != "fp8"])
def test_torchao_stored_map_wins(state: str, name: str) -> None:
    """One value of the map is one ulp off, as where it was built without FMA."""
    qmap = dicts.MAPS[state, name == "exp_avg"].clone()
    qmap[9] = torch.nextafter(qmap[9], torch.tensor(2.0, dtype=torch.float32))
    moment, parts, values = torchao_moment(state, name, (32, 256), 128, qmap=qmap)
    assert moment.format == ""
    assert moment.bytes_in_format(state, 128) is None
    codes = dicts.unpack(parts["codes"]) if state == "4bit" else parts["codes"]
    right = dicts.expected(codes, parts["scale"], 128, qmap, (32, 256))
    assert not same_bits(right, values)
    assert_values(moment, right)


@pytest.mark.parametrize(("state", "name"), TORCHAO)
def test_torchao_fresh_state_is_zero(state: str, name: str) -> None:
    parts, _ = dicts.torchao_parts(state, name == "exp_avg", (32, 256), 128)
    zeros = {key: torch.zeros_like(parts[key]) for key in ("codes", "scale")}
    moment, _, _ = torchao_moment(state, name, (32, 256), 128, **zeros)
    assert moment.values().abs().max() == 0


def test_torchao_zero_variance_in_four_bits() -> None:
    """torchao's all-zero block of v: code 0 and scale 1e-12, which is 6.25e-14 there and here."""
    codes = torch.zeros(4096, dtype=torch.uint8)
    scale = torch.full((64,), 1e-12, dtype=torch.float32)
    moment, _, _ = torchao_moment("4bit", "exp_avg_sq", (32, 256), 128, codes=codes, scale=scale)
    assert torch.equal(moment.values(), torch.full((32, 256), 1e-12, dtype=torch.float32) / 16)


def test_torchao_scales_of_a_bf16_default_dtype() -> None:
    scale = dicts.random_scales(32, 0).bfloat16()
    moment, parts, _ = torchao_moment("8bit", "exp_avg", (32, 256), 256, scale=scale)
    assert moment.scales is not None
    assert moment.scales.dtype == torch.float32
    right = dicts.expected(parts["codes"], scale, 256, dicts.MAPS["8bit", True], (32, 256))
    assert_values(moment, right)


def test_four_bits_for_rank_one() -> None:
    """docs/formats.md: 4bit-rank1 keeps m, and v of a vector, as 4bit does."""
    for name, shape, same in (
        ("exp_avg", (32, 256), True),
        ("exp_avg_sq", (32, 256), False),
        ("exp_avg_sq", (8192,), True),
    ):
        moment, _, _ = torchao_moment("4bit", name, shape, 128)
        assert (moment.bytes_in_format("4bit-rank1") is not None) == same


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"signed": False}, "signed=False, expected True"),
        ({"scale": torch.ones(31)}, "31 scales"),
        ({"scale": torch.ones(0)}, "0 scales"),
        ({"scale": torch.ones(32, dtype=torch.int32)}, "scales of torch.int32"),
        ({"codes": torch.zeros(100, dtype=torch.uint8)}, "100 codes"),
        ({"codes": torch.zeros(32, 256, dtype=torch.float32)}, "codes of torch.float32"),
        ({"qmap": torch.ones(16)}, "qmap of 16 entries, expected 256"),
    ],
)
def test_torchao_errors(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        torchao_moment("8bit", "exp_avg", (32, 256), 256, **changed)
    parts, _ = dicts.torchao_parts("8bit", True, (32, 256), 256)
    with pytest.raises(ValueError, match="has shape"):
        read_peer_state(
            {"step": 1, "exp_avg": dicts.torchao_state("8bit", (32, 256), parts)}, (256, 32), ADAM
        )


# --- bitsandbytes ----------------------------------------------------------------------------------------


def bitsandbytes_entry(shape: tuple[int, ...], block: int, *, slots: int = 2) -> tuple[dict[str, Any], Any]:
    first, m = dicts.bitsandbytes_parts(1, shape, block, seed=1)
    second, v = dicts.bitsandbytes_parts(2, shape, block, seed=5)
    return ({**first, **second} if slots == 2 else first), (m, v)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("block", [256, 2048])
@pytest.mark.parametrize("shape", [(64, 128), (50, 101), (5000,), (1, 4097), (255, 257)])
def test_bitsandbytes(shape: tuple[int, ...], block: int, nested: bool) -> None:
    flat, values = bitsandbytes_entry(shape, block)
    entry = {"step": 9, dicts.NESTED: flat} if nested else {"step": 9, **flat}
    saved = read(entry, shape)
    assert saved.step == 9
    assert saved.ignored == ()
    assert set(saved.moments) == {"exp_avg", "exp_avg_sq"}
    for slot, (moment, right) in enumerate(zip(saved.moments.values(), values, strict=True), start=1):
        assert (moment.format, moment.block_size) == ("8bit", block)
        assert_values(moment, right)
        assert moment.bytes_in_format("8bit", 4096) is None
        codes, scales = moment.bytes_in_format("8bit", block)
        assert torch.equal(codes, flat[f"state{slot}"])
        assert same_bits(scales, flat[f"absmax{slot}"])


@pytest.mark.parametrize("numel", [0, 1, 200, 256, 2048])
def test_bitsandbytes_one_block(numel: int) -> None:
    """Where there is one block at most its size cannot be told, and does not matter."""
    flat, values = bitsandbytes_entry((numel,), 2048)
    moments = read({"step": 1, **flat}, (numel,)).moments
    assert_values(moments["exp_avg"], values[0])
    assert moments["exp_avg"].bytes_in_format("8bit", 2048) is not None
    assert (moments["exp_avg"].bytes_in_format("8bit", 256) is not None) == (numel <= 256)


def test_bitsandbytes_stored_map_wins() -> None:
    flat, _ = bitsandbytes_entry((5000,), 256)
    flat["qmap2"][200] *= 1.5
    moment = read({"step": 1, **flat}, (5000,)).moments["exp_avg_sq"]
    assert moment.bytes_in_format("8bit") is None
    assert_values(moment, dicts.expected(flat["state2"], flat["absmax2"], 256, flat["qmap2"], (5000,)))


def test_codes_of_a_zero_absmax_are_not_interpreted() -> None:
    flat, _ = bitsandbytes_entry((4096,), 256)
    flat["absmax1"].zero_()
    flat["absmax2"].zero_()
    for moment in read({"step": 1, **flat}, (4096,)).moments.values():
        assert moment.values().abs().max() == 0


def test_bitsandbytes_32_bits() -> None:
    m, v = torch.randn(10, 10, dtype=torch.float32), torch.rand(10, 10, dtype=torch.float32)
    entry = {"step": 4, dicts.NESTED: {"state1": m, "state2": v, "unorm_vec": torch.zeros(1)}}
    saved = read(entry, (10, 10))
    assert_values(saved.moments["exp_avg"], m)
    assert_values(saved.moments["exp_avg_sq"], v)
    assert saved.moments["exp_avg"].format == "fp32"
    assert saved.ignored == ()


@pytest.mark.parametrize(("algorithm", "name"), [(SGD, "momentum_buffer"), (LION, "exp_avg")])
def test_bitsandbytes_one_state(algorithm: str, name: str) -> None:
    flat, values = bitsandbytes_entry((5000,), 256, slots=1)
    saved_group = {"lr": 1e-3, "betas": (0.9, 0.0), "eps": 0.0, "weight_decay": 0.0}  # of both
    saved = read({"step": 2, **flat}, (5000,), algorithm, saved_group)
    assert set(saved.moments) == {name}
    assert_values(saved.moments[name], values[0])
    with pytest.raises(ValueError, match="eps=1e-10: it is a second moment"):
        read_peer_state({"step": 2, **flat}, (5000,), algorithm, {**saved_group, "eps": 1e-10})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state1": torch.zeros(2, 5000, dtype=torch.uint8)}, "two first moments"),
        ({"absmax1": None, "max1": torch.zeros(1), "new_max1": torch.zeros(1)}, "block_wise=False"),
        ({"absmax1": torch.zeros(17)}, "absmax1 has 17 entries for 5000 elements"),
        ({"absmax1": None}, "absmax1 or qmap1 is missing"),
        ({"qmap2": torch.zeros(16)}, "qmap2 has 16 entries"),
        ({"state2": torch.zeros(4999)}, r"state2 has shape \(4999,\)"),
        ({"state2": torch.zeros(5000, dtype=torch.int8)}, "exp_avg_sq has dtype torch.int8"),
    ],
)
def test_bitsandbytes_errors(change: dict[str, Any], message: str) -> None:
    flat, _ = bitsandbytes_entry((5000,), 256)
    flat = {key: value for key, value in {**flat, **change}.items() if value is not None}
    for entry in ({"step": 1, **flat}, {"step": 1, dicts.NESTED: flat}):
        with pytest.raises(ValueError, match=message):
            read_peer_state(entry, (5000,), ADAM)


def test_bitsandbytes_without_a_state() -> None:
    with pytest.raises(ValueError, match="without the tensor state1"):
        read_peer_state({"step": 1, dicts.NESTED: {}}, (4,), ADAM)
    with pytest.raises(ValueError, match="expected a dict"):
        read_peer_state({"step": 1, dicts.NESTED: 3}, (4,), ADAM)


def test_bitsandbytes_state_of_a_channels_last_parameter() -> None:
    """Its CUDA kernels fill the memory in the order of the contiguous parameter, whatever the strides say."""
    flat, values = bitsandbytes_entry((16, 8, 6, 7), 256, slots=1)
    strided = torch.empty(16, 8, 6, 7, dtype=torch.uint8, memory_format=torch.channels_last)
    strided.as_strided((strided.numel(),), (1,)).copy_(flat["state1"].view(-1))
    with pytest.warns(UserWarning, match="order of its memory"):
        moment = read({"step": 1, **flat, "state1": strided}, (16, 8, 6, 7), LION).moments["exp_avg"]
    assert_values(moment, values[0])
    gaps = torch.zeros(16, 8, 6, 14, dtype=torch.uint8)[..., ::2]
    with pytest.raises(ValueError, match="gaps"):
        read_peer_state({"step": 1, **flat, "state1": gaps}, (16, 8, 6, 7), LION)


# --- flashoptim ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("shape", [(64, 65), (1,), (33,), (1200, 1000)])
def test_flashoptim(shape: tuple[int, ...], view: bool) -> None:
    entry: dict[str, Any] = {"step": torch.tensor(6)}
    right = {}
    for name, seed in (("exp_avg", 1), ("exp_avg_sq", 2)):
        parts, right[name] = dicts.flashoptim_parts(name, name == "exp_avg", shape, seed)
        if view:  # as it saves them for bf16 parameters
            parts[f"{name}::scales"] = parts[f"{name}::scales"].view(torch.bfloat16)
        entry |= parts
    saved = read(entry, shape)
    assert saved.step == 6
    assert saved.ignored == ()
    for name, values in right.items():
        assert_values(saved.moments[name], values)
        assert saved.moments[name].bytes_in_format("8bit", 32) is None
    assert saved.master(torch.zeros(shape, dtype=torch.bfloat16)) is None


def test_flashoptim_momentum_without_a_step() -> None:
    parts, values = dicts.flashoptim_parts("momentum_buffer", True, (100,))
    saved = read(parts, (100,), SGD)
    assert saved.step == 1
    assert_values(saved.moments["momentum_buffer"], values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exp_avg::scales": torch.zeros(3).half()}, "exp_avg::scales has 3 entries, expected 4"),
        ({"exp_avg::scales": None}, "exp_avg::scales is not a tensor"),
        ({"exp_avg::scales": torch.zeros(4).double()}, "exp_avg::scales has dtype torch.float64"),
        ({"exp_avg::quantized": torch.zeros(100, dtype=torch.uint8)}, "expected torch.int8"),
        ({"exp_avg::quantized": torch.zeros(99, dtype=torch.int8)}, r"exp_avg::quantized has shape \(99,\)"),
        ({"error_bits": torch.zeros(99, dtype=torch.int8)}, r"error_bits has shape \(99,\)"),
        ({"error_bits": torch.zeros(100, dtype=torch.bfloat16)}, "master_bytewidth is None"),
    ],
)
def test_flashoptim_errors(change: dict[str, Any], message: str) -> None:
    parts, _ = dicts.flashoptim_parts("exp_avg", True, (100,))
    with pytest.raises(ValueError, match=message):
        read_peer_state({"step": 1, **parts, **change}, (100,), LION)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [24, 32])
def test_flashoptim_masters(dtype: torch.dtype, bits: int) -> None:
    """w + e/127 (e/32767) of half the gap to w's neighbour, here in double, rounded where it rounds."""
    largest, kind = (127, torch.int8) if bits == 24 else (32767, torch.int16)
    spread = 10.0 ** torch.linspace(*((-42, 38) if dtype == torch.bfloat16 else (-9, 4)), 400)
    weights = torch.cat([spread, -spread, torch.zeros(2)]).to(dtype)
    errors = torch.randint(-largest, largest + 1, weights.shape).to(kind)
    errors[:3] = torch.tensor([largest, -largest, 0])
    above = torch.nextafter(weights.abs(), torch.tensor(torch.inf, dtype=dtype))
    gap = above.double() - weights.abs().double()
    largest_finite = torch.isinf(above)
    gap[largest_finite] = 0  # the neighbour is infinity; not compared
    error = (errors.float() / largest).double() * (gap / 2)
    right = (weights.double() + error.float().double()).float()
    saved_as = errors.to(dtype) if bits == 24 else errors.view(dtype)
    for stored, group in ((errors, {}), (saved_as, {"master_bytewidth": bits // 8})):
        entry = {"step": 1, "exp_avg": torch.zeros(weights.shape), "error_bits": stored}
        saved = read(entry, tuple(weights.shape), LION, group)
        assert saved.master_bits == bits
        assert torch.equal(saved.error_bits, errors)
        got = saved.master(weights)
        assert torch.equal(got[~largest_finite], right[~largest_finite])
    with pytest.raises(ValueError, match="16-bit"):
        saved.master(weights.float())


def test_error_bits_must_be_whole() -> None:
    entry = {"step": 1, "exp_avg": torch.zeros(4), "error_bits": torch.full((4,), 0.5, dtype=torch.bfloat16)}
    with pytest.raises(ValueError, match="whole numbers"):
        read_peer_state(entry, (4,), LION, {"master_bytewidth": 3})
