"""register_with_nemo and the swap, against a stand-in for what they use of NeMo.

NeMo is too large to install for tests. The stand-in has the names, signatures and rules of
nemo/core/optim/optimizers.py (register_optimizer, get_optimizer), nemo/core/config (OptimizerParams, one
registry entry per class name) and of ModelPT.setup_optimization, and none of their code.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import clients
import pytest
import torch
from models import gradients, make_params, train
from octavo import optim
from octavo._describe import algorithms
from octavo.integrations import register_with_nemo

SHAPES = ((64, 80), (17,))


@dataclasses.dataclass
class OptimizerParams:
    lr: float | None = None  # NeMo's has OmegaConf's MISSING


class Registry(types.ModuleType):
    """nemo.core.optim.optimizers"""

    def __init__(self) -> None:
        super().__init__("nemo.core.optim.optimizers")
        self.AVAILABLE_OPTIMIZERS: dict[str, Any] = {"adamw": torch.optim.AdamW}
        self.params: dict[str, Any] = {}  # nemo.core.config's

    def register_optimizer(self, name: str, optimizer: type, optimizer_params: type) -> None:
        if name in self.AVAILABLE_OPTIMIZERS:
            raise ValueError(f"Cannot override pre-existing optimizers. Conflicting optimizer name = {name}")
        self.AVAILABLE_OPTIMIZERS[name] = optimizer
        self.register_optimizer_params(f"{optimizer.__name__}_params", optimizer_params)

    def register_optimizer_params(self, name: str, optimizer_params: type) -> None:
        """nemo.core.config's"""
        if name in self.params:
            raise ValueError(f"Cannot override pre-existing optimizers. Conflicting optimizer name = {name}")
        self.params[name] = optimizer_params

    def get_optimizer(self, name: str, **kwargs: Any) -> Any:
        if name not in self.AVAILABLE_OPTIMIZERS:
            raise ValueError(
                f"Cannot resolve optimizer '{name}'. Available optimizers are : "
                f"{self.AVAILABLE_OPTIMIZERS.keys()}"
            )
        return functools.partial(self.AVAILABLE_OPTIMIZERS[name], **kwargs)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    found = Registry()
    modules: dict[str, Any] = {name: types.ModuleType(name) for name in ("nemo", "nemo.core")}
    modules["nemo.core.config"] = types.ModuleType("nemo.core.config")
    modules["nemo.core.config"].OptimizerParams = OptimizerParams
    modules["nemo.core.config"].register_optimizer_params = found.register_optimizer_params
    modules["nemo.core.optim"] = types.ModuleType("nemo.core.optim")
    modules["nemo.core.optim"].optimizers = found
    modules["nemo.core.optim.optimizers"] = found
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


class ModelPT:
    """What a NeMo model does with `optim` of its config: optimizer, schedule, and where it keeps them."""

    def __init__(self, registry: Registry, config: dict[str, Any]) -> None:
        self.registry, self.config = registry, config
        self.params = make_params(SHAPES)

    def setup_optimization(self, optim_config: Any = None, optim_kwargs: Any = None) -> Any:
        options = dict(optim_config or self.config)
        schedule, name = options.pop("sched"), options.pop("name")
        self._optimizer = self.registry.get_optimizer(name)([{"params": self.params}], **options)
        made = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, **schedule)
        self._scheduler = {"scheduler": made, "interval": "step", "frequency": 1, "monitor": "loss"}
        return self._optimizer, self._scheduler

    def configure_optimizers(self) -> Any:
        self.setup_optimization()
        return [self._optimizer], [self._scheduler]


def rates(model: ModelPT) -> list[float]:
    (optimizer,), (schedule,) = model.configure_optimizers()
    found = []
    for grads in gradients(model.params, 5):
        found.append(optimizer.param_groups[0]["lr"])
        train(optimizer, model.params, [grads])
        schedule["scheduler"].step()
    return found


def test_a_registered_class_trains_from_the_guides_config(registry: Registry) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    clients.run_guide("nemo.md", 0, {})
    guide = Path(__file__).resolve().parents[2] / "docs/guides/nemo.md"
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    config = yaml.safe_load(text)["optim"]
    model = ModelPT(registry, {**config, "sched": {"T_max": 5}})
    assert rates(model) == rates(ModelPT(registry, {"name": "adamw", "lr": 1e-3, "sched": {"T_max": 5}}))
    assert type(model._optimizer) is optim.AdamW8bit
    group = model._optimizer.param_groups[0]
    assert (group["betas"], group["weight_decay"], group["block_size"]) == ((0.9, 0.98), 1e-3, 128)


def test_every_default_class_is_registered_once_with_parameters_that_make_it(registry: Registry) -> None:
    names = register_with_nemo()
    assert register_with_nemo() == names
    classes = [a.title + suffix for a in algorithms().values() for suffix in ("8bit", "4bit", "Fp8", "Fp4")]
    assert set(classes) < set(names)
    assert len(names) == len(set(names)) == 4 * len(classes)
    for name in classes:
        made = registry.params[f"{name}_params"](lr=1e-2)
        assert isinstance(made, OptimizerParams)
        params = make_params(SHAPES)
        by_params = registry.get_optimizer(name)(params, **vars(made))
        plain = getattr(optim, name)(make_params(SHAPES), lr=1e-2)
        assert by_params.defaults == plain.defaults  # what is not said is the class's default
        train(by_params, params, gradients(params, 1))


SPELLINGS = {
    "adamw_8bit": "AdamW8bit",
    "adamw8bit": "AdamW8bit",
    "8bit_adamw": "AdamW8bit",
    "adamw_4bit": "AdamW4bit",
    "4bit_adamw": "AdamW4bit",
    "adamw_fp8": "AdamWFp8",
    "adamwfp8": "AdamWFp8",
    "fp8_adamw": "AdamWFp8",
    "adam_8bit": "Adam8bit",
    "4bit_adam": "Adam4bit",
    "lion_8bit": "Lion8bit",
    "sgd8bit": "SGD8bit",
}


def test_the_spellings_of_configs(registry: Registry) -> None:
    with pytest.raises(ValueError, match="Cannot resolve optimizer 'adamw_8bit'"):
        registry.get_optimizer("adamw_8bit")
    names = register_with_nemo()
    assert set(SPELLINGS) < set(names)
    for name, expected in SPELLINGS.items():
        assert registry.params[f"{name}_params"] is registry.params[f"{expected}_params"]
        model = ModelPT(registry, {"name": name, "lr": 1e-3, "sched": {"T_max": 5}})
        model.setup_optimization()
        assert type(model._optimizer) is getattr(optim, expected)
        assert model._optimizer.param_groups[0]["lr"] == 1e-3


@pytest.mark.parametrize("name", ["AdamW8bit", "adamw8bit"])
def test_a_name_that_is_taken_is_nemos_error(registry: Registry, name: str) -> None:
    registry.AVAILABLE_OPTIMIZERS[name] = torch.optim.AdamW
    before = dict(registry.AVAILABLE_OPTIMIZERS)
    with pytest.raises(ValueError, match=f"Conflicting optimizer name = {name}, which is torch.optim.adamw"):
        register_with_nemo()
    assert before == registry.AVAILABLE_OPTIMIZERS
    assert not registry.params


def test_a_class_whose_name_does_not_say_the_format_takes_it(registry: Registry) -> None:
    assert register_with_nemo(optim.Lion) == ["Lion"]
    options = vars(registry.params["Lion_params"](lr=1e-2, state="4bit"))
    params = make_params(SHAPES)
    assert registry.get_optimizer("Lion")(params, **options).param_groups[0]["state"] == "4bit"


def test_the_guides_swap_goes_on_with_nemos_schedule(registry: Registry) -> None:
    config = {"name": "adamw", "lr": 1e-2, "betas": (0.9, 0.98), "weight_decay": 0.1, "sched": {"T_max": 5}}
    swapping = clients.run_guide("nemo.md", 1, {"YourModel": ModelPT})["Model"]
    model = swapping(registry, config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rates(model)
    assert found == rates(ModelPT(registry, config))
    assert type(model._optimizer) is optim.AdamW8bit
    group = model._optimizer.param_groups[0]
    assert (group["betas"], group["weight_decay"], group["state"]) == ((0.9, 0.98), 0.1, "8bit")


def test_the_guides_function_takes_nemos_groups() -> None:
    """PytorchOptimizerModule reads weight_decay from the partial, and may pass a group with no parameters."""
    make = clients.run_guide("nemo.md", 2, {})["optimizer_fn"]
    params = make_params(SHAPES)
    decay = make.keywords.get("weight_decay", 0)
    optimizer = make([{"params": params, "weight_decay": decay}, {"params": [], "weight_decay": 0}])
    train(optimizer, params, gradients(params, 2))
    again = make([{"params": make_params(SHAPES), "weight_decay": decay}, {"params": [], "weight_decay": 0}])
    again.load_state_dict(optimizer.state_dict())
    assert [group["weight_decay"] for group in again.param_groups] == [0.1, 0]
    assert {int(entry["step"]) for entry in again.state.values()} == {2}
