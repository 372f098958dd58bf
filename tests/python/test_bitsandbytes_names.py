"""Calls written for bitsandbytes that octavo.optim takes: GlobalOptimManager, and arguments by position."""

import gc

import pytest
import torch
from octavo import optim


@pytest.fixture
def manager():
    return optim.GlobalOptimManager.get_instance()


def stepped_dtype(param: torch.Tensor, **options: object) -> torch.dtype:
    optimizer = optim.Adam([param], **options)
    param.grad = torch.ones_like(param)
    optimizer.step()
    return optimizer.state[param]["exp_avg"].dtype


def test_an_override_goes_before_the_group(manager):
    param = torch.zeros(64, 64)
    manager.override_config(param, "optim_bits", 8)
    assert stepped_dtype(param, optim_bits=32) == torch.uint8


def test_initialize_takes_overrides_back(manager):
    module, param = torch.nn.Linear(64, 64), torch.zeros(64, 64)
    manager.register_module_override(module, "weight", {"optim_bits": 8})
    manager.override_config([param], key_value_dict={"optim_bits": 8})
    manager.initialize()
    assert stepped_dtype(param) == torch.float32
    assert stepped_dtype(module.weight) == torch.float32


def test_initialize_leaves_what_was_set_elsewhere(manager):
    param = torch.zeros(64, 64)
    optim.set_state(param, state="8bit")
    manager.initialize()
    assert stepped_dtype(param) == torch.uint8


def test_the_manager_keeps_no_parameter_alive(manager):
    manager.initialize()
    param = torch.zeros(64, 64)
    manager.override_config(param, "optim_bits", 8)
    del param
    gc.collect()
    assert [ref() for ref in manager._overridden.values()] == [None]
    manager.initialize()


@pytest.mark.parametrize(
    ("name", "before"), [("SGD8bit", (0.1, 0.9, 0, 0, False)), ("Lion32bit", (0.1, (0.9, 0.99), 0))]
)
def test_arguments_in_either_order(name, before):
    """bitsandbytes has no optim_bits before `args` in these, ours have."""
    param, bits = torch.zeros(64, 64), 8 if "8bit" in name else 32
    kind = getattr(optim, name)
    for tail in ((None, 8192), (bits, None, 8192), (None, None, 8192), ("None", "8192")):
        optimizer = kind([param], *before, *tail)
        assert optimizer.param_groups[0]["min_quantized_size"] == 8192, tail
    assert kind([param], *before, None, 8192, True)._offload_options.offload == "auto"
    with pytest.raises(TypeError, match="got multiple values for argument 'min_8bit_size'"):
        kind([param], *before, None, 8192, min_8bit_size=1)
    with pytest.raises(TypeError, match=r"args is 8192.*min_8bit_size by name"):
        kind([param], *before, 8, 8192)
