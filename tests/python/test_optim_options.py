"""Arguments as torch, torchao, bitsandbytes and transformers' `optim_args` spell them, and the ones that are
refused.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import pathlib
import pickle
import pydoc
import subprocess
import sys
import typing
import warnings
from collections import UserList
from typing import Any

import pytest
import torch
from models import clones, gradients, make_params, same_params, train
from octavo import optim
from octavo._describe import ANY, FLAG, FRACTION, NON_NEGATIVE, POSITIVE, algorithms
from octavo.optim.offload_options import Options
from torch.nn import Parameter

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGED = sorted(name for name in optim.__all__ if name.startswith("Paged"))


def big(device: str = "cpu") -> list[Parameter]:
    return make_params([(64, 64)], device)


def group_of(optimizer: torch.optim.Optimizer, *keys: str) -> list[Any]:
    return [optimizer.param_groups[0][key] for key in keys]


# --- The same calls -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_torchs_signature(name: str) -> None:
    """Every argument of torch's class is taken, by the same name, place and default."""
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    ours = inspect.signature(getattr(optim, name)).parameters
    cls = getattr(optim, name)
    reference = getattr(torch.optim, name)(big()).param_groups[0]
    mine = cls(big()).param_groups[0]
    placed = [p for p in theirs if theirs[p].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert list(ours)[: len(placed)] == placed
    for argument in theirs:
        if argument == "params":
            continue
        if argument not in ("differentiable", "decoupled_weight_decay"):
            assert mine[argument] == reference[argument], argument
        cls(big(), **{argument: reference[argument]})


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("AdamW8bit", "8bit"),
        ("AdamW4bit", "4bit"),
        ("AdamWFp8", "fp8"),
        ("Adam8bit", "8bit"),
        ("Adam4bit", "4bit"),
        ("AdamFp8", "fp8"),
    ],
)
def test_torchaos_calls(name: str, state: str) -> None:
    optimizer = getattr(optim, name)(
        big(), 1e-4, (0.9, 0.95), 1e-6, 0.1, False, block_size=256, bf16_stochastic_round=True
    )
    assert group_of(optimizer, "lr", "betas", "eps", "weight_decay", "amsgrad", "block_size") == [
        1e-4,
        (0.9, 0.95),
        1e-6,
        0.1,
        False,
        256,
    ]
    assert group_of(optimizer, "state", "master") == [state, "stochastic"]


def test_bitsandbytes_calls() -> None:
    """optim_bits by its place; args is an object that nothing reads."""
    options = (1e-4, (0.9, 0.95), 1e-6, 0.1, False)
    for bits, state in ((32, "fp32"), (8, "8bit"), (4, "4bit"), (16, "bf16"), ("8", "8bit")):
        optimizer = optim.AdamW(big(), *options, bits, object(), 2048)
        assert group_of(optimizer, "state", "min_quantized_size") == [state, 2048]
    assert group_of(optim.AdamW8bit(big(), *options, 32), "state") == ["8bit"]  # its default there
    assert group_of(optim.SGD8bit(big(), 0.1, 0.9, 0.0, 0.1, True), "state", "nesterov") == ["8bit", True]
    assert group_of(optim.Lion8bit(big(), 1e-4, (0.9, 0.99), 0.1), "state", "weight_decay") == ["8bit", 0.1]
    assert group_of(optim.Adam32bit(big()), "state") == ["fp32"]
    groups = [{"params": big(), "optim_bits": 8, "min_8bit_size": 16}]
    assert group_of(optim.AdamW(groups), "state", "min_quantized_size") == ["8bit", 16]


def test_every_name_of_the_module() -> None:
    for name in optim.__all__:
        cls = getattr(optim, name)
        if not (inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer)) or name == "Optimizer":
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            options = {"momentum": 0.9} if name.startswith("SGD") else {}
            params = big()
            optimizer = cls(params, **options)
        before = params[0].detach().clone()
        train(optimizer, params, gradients(params, 2))
        assert not torch.equal(params[0], before)
        assert repr(optimizer).startswith(f"{name} (")
        assert cls.__doc__
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = clones(params)
            other = cls(again, **options)
        other.load_state_dict(optimizer.state_dict())
        steps = gradients(params, 1, seed=5)
        train(optimizer, params, steps)
        train(other, again, steps)
        assert same_params(params, again), name


STRINGS = [
    ({"betas": "0.9,0.95"}, {"betas": (0.9, 0.95)}),
    ({"betas": "(0.9, 0.95)"}, {"betas": (0.9, 0.95)}),
    ({"lr": "1e-4"}, {"lr": 1e-4}),
    ({"eps": "1e-6"}, {"eps": 1e-6}),
    ({"weight_decay": "0.1"}, {"weight_decay": 0.1}),
    ({"block_size": "256"}, {"block_size": 256}),
    ({"block_size": "None"}, {"block_size": None}),
    ({"amsgrad": "True"}, {"amsgrad": True}),
    ({"amsgrad": "false"}, {"amsgrad": False}),
    ({"maximize": "True"}, {"maximize": True}),
    ({"bf16_stochastic_round": "True"}, {"master": "stochastic"}),
    ({"master": "32"}, {"master": 32}),
    ({"min_8bit_size": "2048"}, {"min_quantized_size": 2048}),
    ({"min_quantized_size": "0"}, {"min_quantized_size": 0}),
    ({"optim_bits": "8"}, {"state": "8bit"}),
    ({"fused": "True"}, {"fused": True}),
    ({"seed": "7"}, {"seed": 7}),
]


@pytest.mark.parametrize(("given", "meant"), STRINGS, ids=str)
def test_strings(given: dict[str, str], meant: dict[str, Any]) -> None:
    """What `--optim_args "betas=(0.9,0.95)"` becomes; the step is that of the value itself."""
    text, value = big(), big()
    ours, plain = optim.AdamW(text, **given), optim.AdamW(value, **meant)
    assert frozenset(ours.param_groups[0]) == frozenset(plain.param_groups[0])
    (key,) = meant
    assert group_of(ours, key) == [meant[key]]
    assert type(ours.param_groups[0][key]) is type(meant[key])
    steps = gradients(text, 2)
    train(ours, text, steps)
    train(plain, value, steps)
    assert same_params(text, value)


@pytest.mark.parametrize("seed", [1.5, -1, 2**64, True, math.nan, math.inf, "1.5", "text", None])
def test_seeds_that_are_refused(seed: Any) -> None:
    """They were cut to 64 bits silently."""
    with pytest.raises(
        ValueError, match=r"Invalid seed: .*, expected an integer of at least 0 and below 2\*\*64"
    ):
        optim.AdamW(big(), seed=seed)
    params = big()
    optimizer = optim.AdamW(params)
    optimizer.param_groups[0]["seed"] = seed
    params[0].grad = torch.ones_like(params[0])
    with pytest.raises(ValueError, match="Invalid seed"):
        optimizer.step()


@pytest.mark.parametrize("seed", [0, 2**64 - 1, 7.0, "7", torch.tensor(7)])
def test_seeds_that_are_accepted(seed: Any) -> None:
    optimizer = optim.AdamW(big(), seed=seed)
    assert optimizer.param_groups[0]["seed"] == int(seed)
    assert type(optimizer.param_groups[0]["seed"]) is int


def test_a_checkpoint_with_a_seed_that_was_cut_loads() -> None:
    optimizer = optim.AdamW(big())
    saved = optimizer.state_dict()
    saved["param_groups"][0]["seed"] = -1
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["seed"] == 2**64 - 1


def test_strings_of_the_optimizers_own_options() -> None:
    clipped, plain = big(), big()
    steps = gradients(clipped, 2)
    train(optim.SGD(clipped, clip_grad_norm="0.5", skip_nonfinite="True", nesterov="False"), clipped, steps)
    train(optim.SGD(plain, clip_grad_norm=0.5, skip_nonfinite=True, nesterov=False), plain, steps)
    assert same_params(clipped, plain)
    assert not same_params(clipped, big())
    released = optim.SGD(big(), gradient_release="True")
    (param,) = released.param_groups[0]["params"]
    param.sum().backward()
    assert param.grad is None


# --- Warnings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGED)
def test_paged_names_offload_and_do_not_warn(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = getattr(optim, name)(big())
        assert optimizer._offload_options.offload == "auto"
        train(optimizer, optimizer.param_groups[0]["params"], gradients(big(), 2))


def test_is_paged_is_offload() -> None:
    given: list[dict[str, Any]] = [{"is_paged": True}, {"is_paged": "True"}, {"is_paged": False}]
    given += [{"is_paged": True, "offload": "host"}]
    found = [optim.AdamW8bit(big(), **options)._offload_options.offload for options in given]
    assert found == ["auto", "auto", "none", "host"]


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [
        ("percentile_clipping", 5, 100),
        ("block_wise", False, True),
        ("max_unorm", 1.0, 0.0),
        ("skip_zeros", True, False),
    ],
)
def test_removed_arguments(name: str, value: Any, neutral: Any) -> None:
    """A value that asked for something warns that it has none; the default says nothing."""
    with pytest.warns(UserWarning, match=f"{name} has no effect"):
        optim.AdamW8bit(big(), **{name: value})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optim.AdamW8bit(big(), **{name: neutral})


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Lion8bit", "PagedAdamW8bit"])
def test_unknown_arguments(name: str) -> None:
    cls = getattr(optim, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(TypeError, match=rf"{name}.__init__\(\) got an unexpected keyword .* 'typo'"):
            cls(big(), typo=1)
    if "betas" not in inspect.signature(cls).parameters:
        with pytest.raises(TypeError, match="'betas'"):
            cls(big(), betas=(0.9, 0.99))


NOT_OF_GROUPS = {"optim_bits", "bf16_stochastic_round", "differentiable", "amsgrad"}
NOT_OF_GROUPS |= {"decoupled_weight_decay"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("AdamW", {"state": "8bit", "optim_bits": 4}, "which differ"),
        ("AdamW", {"state": "8bit", "optim_bits": 32}, "which differ"),
        ("AdamW8bit", {"state": "4bit"}, "AdamW8bit keeps 8bit states, got state='4bit'"),
        ("AdamW4bit", {"optim_bits": 8}, "AdamW4bit keeps 4bit states, got optim_bits=8"),
        ("AdamW", {"optim_bits": 7}, "Invalid optim_bits: 7, expected 32, 16, 8 or 4"),
        ("AdamW", {"bf16_stochastic_round": True, "master": 32}, "which differ"),
        ("AdamW", {"differentiable": True}, "differentiable=True is not supported"),
        ("Adam", {"decoupled_weight_decay": True}, "decoupled_weight_decay=True is AdamW"),
        ("AdamW", {"state": "int7"}, "Invalid state: 'int7', expected one of 'fp32', 'bf16', '8bit'"),
        ("AdamW", {"state": "8bit", "block_size": 100}, "Invalid block_size: 100, expected a power of two"),
        ("AdamW", {"block_size": 16}, "Invalid block_size: 16"),
        ("AdamW", {"block_size": 8192}, "Invalid block_size: 8192"),
        ("AdamW", {"block_size": 256.5}, "Invalid block_size: 256.5"),
        ("AdamW", {"block_size": "large"}, "Invalid block_size: 'large'"),
        ("AdamW", {"master": 16}, "Invalid master: 16, expected 'native', 'stochastic', 24 or 32"),
        ("AdamW", {"min_quantized_size": -1}, "Invalid min_quantized_size: -1"),
        ("AdamW", {"clip_grad_norm": 0}, "Invalid clip_grad_norm: 0"),
        ("AdamW", {"clip_grad_norm": -1.0}, "Invalid clip_grad_norm: -1.0"),
        ("AdamW", {"clip_grad_norm": float("nan")}, "Invalid clip_grad_norm: nan"),
        ("AdamW", {"clip_grad_norm": "much"}, "Invalid clip_grad_norm: much"),
        ("AdamW", {"lr": -1e-3}, "Invalid learning rate: -0.001"),
        ("AdamW", {"lr": float("nan")}, "Invalid learning rate: nan"),
        ("AdamW", {"lr": "fast"}, "Invalid learning rate: fast"),
        ("AdamW", {"lr": torch.tensor(-1.0)}, "Invalid learning rate"),
        ("AdamW", {"lr": torch.ones(2)}, "Tensor lr must be 1-element"),
        ("AdamW", {"eps": -1e-8}, "Invalid epsilon value: -1e-08"),
        ("AdamW", {"weight_decay": -0.1}, "Invalid weight_decay value: -0.1"),
        ("AdamW", {"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0: 1.0"),
        ("AdamW", {"betas": (0.9, -0.1)}, "Invalid beta parameter at index 1: -0.1"),
        ("AdamW", {"betas": (0.9,)}, "Invalid betas"),
        ("AdamW", {"betas": 0.9}, "Invalid betas: 0.9"),
        ("AdamW", {"betas": "high"}, "Invalid betas: 'high'"),
        ("LAMB", {"amsgrad": True}, "LAMB does not support amsgrad=True"),
        (
            "LAMB",
            {"max_unorm": -1.0},
            "Invalid max_unorm value: -1.0, expected a finite number of at least 0",
        ),
        ("RMSprop", {"alpha": 1.0}, "Invalid alpha value: 1.0, expected a number of at least 0 and below 1"),
        ("Adagrad8bit", {"optim_bits": 32}, "Adagrad8bit keeps 8bit states, got optim_bits=32"),
        ("AdEMAMix", {"betas": (0.9, 0.99)}, "Invalid betas: (0.9, 0.99), expected 3 numbers"),
        ("AdEMAMix", {"t_alpha": -1}, "Invalid t_alpha value: -1"),
        ("SGD", {"momentum": -0.9}, "Invalid momentum value: -0.9"),
        ("SGD", {"nesterov": True}, "Nesterov momentum requires a momentum and zero dampening"),
        ("SGD", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "Nesterov momentum requires"),
    ],
    ids=str,
)
def test_bad_arguments(name: str, options: dict[str, Any], message: str) -> None:
    cls = getattr(optim, name)
    message = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=message):
        cls(big(), **options)
    if name[-3:] != "bit" and not set(options) & NOT_OF_GROUPS:  # the same of a group, in mid-training
        params = big()
        optimizer = cls(params)
        with pytest.raises(ValueError, match=message):
            optimizer.add_param_group({"params": big(), **options})
        assert len(optimizer.param_groups) == 1
        train(optimizer, params, gradients(params, 1))


@pytest.mark.parametrize("spelling", ["max_grad_norm", "max_norm"])
@pytest.mark.parametrize(("value", "meant"), [(0.5, 0.5), ("0.5", 0.5), (0, None), (None, None)])
def test_other_spellings_of_clipping(spelling: str, value: Any, meant: float | None) -> None:
    """LibTorch's and the C++ API's, where 0 does not clip."""
    for kind in (optim.AdamW, optim.PytorchLARS):
        assert group_of(kind(big(), **{spelling: value}), "clip_grad_norm") == [meant]
    optimizer = optim.SGD([{"params": big(), spelling: value}], clip_grad_norm=2.0)
    assert group_of(optimizer, "clip_grad_norm") == [meant]
    assert spelling not in optimizer.param_groups[0]
    if meant is not None:
        optim.AdamW(big(), clip_grad_norm=meant, **{spelling: value})
    with pytest.raises(ValueError, match=rf"got clip_grad_norm=3\.0 and {spelling}=.*, which differ"):
        optim.AdamW(big(), clip_grad_norm=3.0, **{spelling: value})


def test_guard_is_skip_nonfinite() -> None:
    params = big()
    before = params[0].detach().clone()
    optimizer = optim.AdamW(params, guard=True)
    params[0].grad = torch.full_like(params[0], torch.nan)
    optimizer.step()
    assert optimizer.last_step_skipped()
    assert same_params(params, [before])
    with pytest.raises(ValueError, match="got skip_nonfinite=False and guard=True, which differ"):
        optim.AdamW(big(), skip_nonfinite=False, guard=True)


def test_names_that_are_not_here() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nadam'"):
        _ = optim.Nadam
    with pytest.raises(ImportError, match="cannot import name 'Typo'"):
        exec("from octavo.optim import Typo")


def test_no_parameters() -> None:
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        optim.AdamW([])
    with pytest.raises(TypeError):
        optim.AdamW(torch.ones(3))
    with pytest.raises(TypeError, match="param_group must be a dict"):
        optim.AdamW(big()).add_param_group(big())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="non-leaf"):
        optim.AdamW([big()[0] * 2])


def test_numbers_of_numpy_and_of_configurations() -> None:
    """As torch takes them; a state dict has Python's."""
    numpy = pytest.importorskip("numpy")
    optimizer = optim.AdamW(
        big(), lr=numpy.float32(0.5), weight_decay=numpy.int64(0), betas=UserList([numpy.float64(0.5), 0.75])
    )
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.5, 0, (0.5, 0.75))
    assert [type(v) for v in (group["lr"], group["weight_decay"], *group["betas"])] == [float] * 4


def test_groups_given_to_two_optimizers() -> None:
    """Each asks for its own format, and the caller's dictionaries stay as they were."""
    groups: list[dict[str, Any]] = [{"params": big()}, {"params": big(), "lr": 0.5, "state": "fp32"}]
    given = [dict(group) for group in groups]
    first, second = optim.AdamW8bit(groups), optim.AdamW4bit(groups, lr=2e-3)
    assert [group["state"] for group in first.param_groups] == ["8bit", "fp32"]
    assert [group["state"] for group in second.param_groups] == ["4bit", "fp32"]
    assert [group["lr"] for group in second.param_groups] == [2e-3, 0.5]
    assert [group.keys() for group in groups] == [group.keys() for group in given]


@pytest.mark.parametrize("name", optim.__all__)
def test_what_a_name_is_can_be_read(name: str) -> None:
    """By type checkers (the stub has the class, or imports what it is) and by help()."""
    stub = ast.parse((pathlib.Path(optim.__file__).parent / "__init__.pyi").read_text())
    imported = [a.name for node in stub.body if isinstance(node, ast.ImportFrom) for a in node.names]
    assert name in imported + [node.name for node in stub.body if isinstance(node, ast.ClassDef)]
    found = getattr(optim, name)
    if inspect.isclass(found) and issubclass(found, optim.Optimizer) and found is not optim.Optimizer:
        parameters = inspect.signature(found).parameters
        assert list(inspect.signature(found.__init__).parameters)[1:] == list(parameters)
        assert typing.get_type_hints(found.__init__)["lr"] == float | torch.Tensor
        assert {"lr", "weight_decay", "state", "master", "clip_grad_norm", "seed"} <= parameters.keys()
        text = pydoc.plain(pydoc.render_doc(found))
        assert "block_size: 'int | None' = None" in text
        assert parameters.keys() - {"params", *found(big(), foreach=False).defaults} <= {
            *("optim_bits", "args", "min_8bit_size", "bf16_stochastic_round", "is_paged", "differentiable"),
            *("skip_nonfinite", "gradient_release", "amsgrad"),  # the last: LAMB's, which refuses it
            *(field.name for field in dataclasses.fields(Options)),
        }


def test_the_stub_is_what_the_descriptions_say() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/make_stubs", "--check"], check=False, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr


def test_classes_are_found_where_they_say_they_are() -> None:
    """By pickle, too; and every one is its algorithm's."""
    for name in set(optim.__all__) - {
        "CPUOffloadOptimizer",
        "GlobalOptimManager",
        "param_groups",
        "set_state",
    }:
        cls = getattr(optim, name)
        assert pickle.loads(pickle.dumps(cls)) is cls
        if cls is not optim.Optimizer:
            assert issubclass(cls, getattr(optim, algorithms()[cls.algorithm].title))
    assert issubclass(optim.PagedAdamW8bit, optim.AdamW8bit)


def test_every_algorithm_has_its_options() -> None:
    """As its description says them: the defaults are taken, a number out of range is refused by its name."""
    for described in algorithms().values():
        cls = getattr(optim, described.title)
        group = cls(big()).param_groups[0]
        for option in described.options:
            value = option.of(group)
            assert (value or 0) == option.default, (described.name, option.name)
            if option.range == FLAG:
                continue
            wrong = {ANY: float("nan"), NON_NEGATIVE: -1.0, POSITIVE: 0.0, FRACTION: 1.0}[option.range]
            given = {option.name: wrong}
            if option.tuple:
                given = {
                    option.tuple: [
                        wrong if i == option.place else v for i, v in enumerate(group[option.tuple])
                    ]
                }
            said = (
                r"beta parameter at index"
                if option.tuple
                else {"lr": "learning rate", "eps": "epsilon"}.get(option.name, option.name)
            )
            with pytest.raises(ValueError, match=rf"Invalid {said}.*{wrong}, expected"):
                cls(big(), **given)
