"""What the library says of its algorithms, as Python reads it."""

import ctypes

from octavo import _abi, _describe


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
    args = _abi.StepArgs()
    _abi.library().octavo_step_args_init_sized(ctypes.byref(args), ctypes.sizeof(args))
    assert (args.struct_size, list(args.own)) == (_abi.StepArgs.own.offset + 64, [0.0] * 8)
