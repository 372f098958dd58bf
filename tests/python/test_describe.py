"""What the library says of its algorithms, as Python reads it."""

import ctypes

import torch
from octavo import _abi, _codec, _describe


def test_options_name_their_place_in_the_step_arguments() -> None:
    adamw = _describe.algorithms()["adamw"]
    offsets = {option.name: option.offset for option in adamw.options}
    for name in ("lr", "beta1", "beta2", "eps", "weight_decay"):
        assert offsets[name] == getattr(_abi.StepArgs, name).offset
    assert [(o.tuple, o.place) for o in adamw.options if o.tuple] == [("betas", 0), ("betas", 1)]
    group = {"betas": (0.5, 0.75), "lr": 2.0}
    assert {o.name: o.of(group) for o in adamw.options if o.of(group) is not None} == {
        "lr": 2.0,
        "beta1": 0.5,
        "beta2": 0.75,
    }
    assert adamw.decoupled
    assert not _describe.algorithms()["adam"].decoupled


def test_switches_decide_the_moments() -> None:
    adam, sgd = _describe.algorithms()["adam"], _describe.algorithms()["sgd"]
    assert [s.name for s in adam.slots(adam.switches({}))] == ["exp_avg", "exp_avg_sq"]
    assert [s.moment for s in adam.slots(adam.switches({"amsgrad": True}))] == ["first", "second", "second"]
    assert sgd.slots(sgd.switches({"momentum": 0.0})) == ()
    assert [s.peer for s in sgd.slots(sgd.switches({"momentum": 0.9}))] == ["state1"]
    assert sgd.first_step_fills
    assert list(sgd.all_slots) == ["momentum_buffer"]


def test_the_step_arguments_end_with_the_algorithms_own_options() -> None:
    args = _abi.new(_abi.StepArgs)
    _abi.check(_abi.library().octavo_step_args_init(ctypes.byref(args)))
    assert (args.struct_size, list(args.own)) == (_abi.StepArgs.own.offset + 64, [0.0] * 8)


def test_formats_say_how_codes_are_kept() -> None:
    formats = _describe.formats()
    for state, dtype in (("fp32", torch.float32), ("8bit", torch.uint8), ("fp8", torch.float8_e4m3fn)):
        assert {formats[state].of(moment).dtype for moment in _describe.MOMENTS} == {dtype}
        assert formats[state].number == _abi.parse("state", state)
    assert (formats["4bit"].first.dtype, formats["4bit"].first.bits) == (None, 4)
    assert (formats["4bit"].default_block, formats["8bit"].default_block) == (128, 256)
    assert (formats["4bit-rank1"].first.by_axis, formats["4bit-rank1"].second.by_axis) == (False, True)
    for state, described in formats.items():
        # As decoding zeros with scales of one shows it.
        block = 32 if described.default_block else 0
        for moment in _describe.MOMENTS:
            size, scales = _codec.layout(moment, state, (32,), block)
            codes = torch.zeros(size, dtype=torch.uint8, device="cpu")
            values = _codec.decode(moment, state, codes, torch.ones(scales, device="cpu"), (32,), block)
            assert described.of(moment).zero_is_zero == (not bool(values.any())), (state, moment)
