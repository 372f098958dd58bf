"""Formats of single parameters, whatever their group says: set_state, GlobalOptimManager, embeddings."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from models import STATES, frozen, gradients, make_params, same_params, small_model, train
from octavo import optim
from octavo.nn import Embedding, StableEmbedding
from torch import Tensor, nn
from torch.nn import Parameter

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "8bit": torch.uint8,
    "4bit": torch.uint8,
    "4bit-rank1": torch.uint8,
    "fp8": torch.float8_e4m3fn,
    "fp8-e5m2": torch.float8_e5m2,
    "4bit/8bit": torch.uint8,
    "fp4": torch.uint8,
    "fp3": torch.uint8,
}


# --- By override ----------------------------------------------------------------------------------


def dtype_of_state(param: Tensor, **options: Any) -> torch.dtype:
    optimizer = optim.AdamW([param], **options)
    train(optimizer, [param], gradients([param], 1))
    return optimizer.state[param]["exp_avg"].dtype


def test_set_state(device: str) -> None:
    for asked in STATES:
        (param,) = make_params([(64, 64)], device)
        optim.set_state(param, state=asked)
        assert dtype_of_state(param, state="8bit") == DTYPES[asked]
    (small,) = make_params([(10,)], device)
    optim.set_state(small, min_quantized_size=0)
    optim.set_state(small, block_size="32")  # adds to what was set
    assert dtype_of_state(small, state="8bit") == torch.uint8
    (narrow,) = make_params([(10,)], device, torch.bfloat16)
    optim.set_state(narrow, master=32)
    optimizer = optim.AdamW([narrow])
    train(optimizer, [narrow], gradients([narrow], 1))
    assert optimizer.state[narrow]["master"].dtype == torch.int16


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"lr": 0.1}, "cannot override 'lr' for one parameter, expected one of state, block_size"),
        ({"state": "2bit"}, "Invalid state: '2bit'"),
        ({"block_size": 33}, "Invalid block_size: 33"),
        ({"master": 8}, "Invalid master: 8"),
    ],
)
def test_set_state_refuses(asked: dict[str, Any], message: str) -> None:
    param = Parameter(torch.ones(4096))
    with pytest.raises(ValueError, match=message):
        optim.set_state(param, **asked)
    assert dtype_of_state(param, state="8bit") == torch.uint8


@pytest.mark.parametrize(
    ("group", "own"),
    [
        ({"state": "4bit"}, {"state": "8bit"}),
        ({"state": "8bit"}, {"state": "4bit"}),
        ({"state": "fp8"}, {"state": "8bit"}),
        ({"state": "8bit"}, {"state": "fp8", "block_size": 512}),
        ({"state": "8bit"}, {"block_size": 64}),
        ({"state": "4bit", "block_size": 32}, {"state": "4bit-rank1", "block_size": 128}),
        ({"state": "4bit-rank1"}, {"state": "4bit"}),
        ({"state": "fp32"}, {"state": "8bit", "block_size": 1024}),
    ],
    ids=str,
)
def test_an_override_survives_checkpoints_and_copies(
    group: dict[str, Any], own: dict[str, Any], device: str
) -> None:
    """The state's own tensors tell their format, where the group says another one."""
    params = make_params([(64, 96), (64, 96)], device)
    optim.set_state(params[0], **own)
    optimizer = optim.AdamW(params, **group)
    steps = gradients(params, 5)
    train(optimizer, params, steps[:3])
    saved = optimizer.state_dict()

    again = [Parameter(p.detach().clone()) for p in params]
    optim.set_state(again[0], **own)
    loaded = optim.AdamW(again, **group)
    loaded.load_state_dict(saved)
    assert frozen(loaded.state_dict()["state"]) == frozen(saved["state"])
    twin = copy.deepcopy(optimizer)
    copies = twin.param_groups[0]["params"]
    for other, its in ((optimizer, params), (loaded, again), (twin, copies)):
        train(other, its, steps[3:])
    assert same_params(params, again)
    assert same_params(params, copies)
    assert frozen(twin.state_dict()["state"]) == frozen(optimizer.state_dict()["state"])


def test_global_optim_manager(device: str) -> None:
    model = small_model(device)
    manager = optim.GlobalOptimManager.get_instance()
    assert manager is optim.GlobalOptimManager.get_instance()
    manager.register_parameters(model.parameters())
    manager.override_config(model["head"].weight, "optim_bits", 32)
    manager.override_config([model["embed"].weight], key_value_dict={"optim_bits": 8, "min_8bit_size": 1})
    manager.register_module_override(model["block"]["proj"], "weight", {"optim_bits": 4})
    optimizer = optim.AdamW8bit(model.parameters())
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    dtype, shape = torch.float32, (64, 64)
    assert optimizer.state[model["head"].weight]["exp_avg"].dtype == dtype
    assert optimizer.state[model["embed"].weight]["exp_avg"].shape == shape
    assert optimizer.state[model["block"]["proj"].weight]["exp_avg"].shape == (2048,)
    with pytest.raises(ValueError, match="cannot override 'lr'"):
        manager.override_config(model["head"].weight, "lr", 0.1)


# --- Embeddings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Embedding, StableEmbedding])
def test_embeddings_keep_fp32_states(cls: Any, device: str) -> None:
    module = cls(100, 64).to(device)
    assert dtype_of_state(module.weight, state="8bit") == torch.float32
    assert dtype_of_state(nn.Embedding(100, 64).to(device).weight, state="8bit") == torch.uint8
    module = cls(100, 64, padding_idx=3, device=device, dtype=torch.bfloat16)
    assert not bool(module.weight[3].any())
    tokens = torch.tensor([[1, 3]], device=device)
    assert module(tokens).dtype == torch.bfloat16
    assert module.half()(tokens).dtype == torch.float16


def test_stable_embedding(device: str) -> None:
    """Xavier weights and a layer norm behind them."""
    torch.manual_seed(0)
    module = StableEmbedding(200, 64).to(device)
    limit = (6 / 264) ** 0.5
    assert 0.9 * limit < float(module.weight.detach().abs().max()) <= limit
    out = module(torch.arange(200, device=device))
    assert out.shape == (200, 64)
    torch.testing.assert_close(out.mean(-1), torch.zeros(200, device=device), rtol=0, atol=1e-5)
    out.square().sum().backward()
    assert module.norm.weight.grad is not None


def test_overrides_go_with_copies(device: str) -> None:
    """Of a parameter, and of a model; a copy's override is its own."""
    model = nn.ModuleDict({"embed": StableEmbedding(64, 64), "head": nn.Linear(64, 64)}).to(device)
    optim.set_state(model["head"].weight, state="4bit", block_size=64)
    twin = copy.deepcopy(model)
    optim.set_state(model["head"].weight, state="fp32")
    optimizer = optim.AdamW8bit(twin.parameters())
    for param in twin.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert optimizer.state[twin["embed"].weight]["exp_avg"].dtype == torch.float32
    assert optimizer.state[twin["head"].weight]["exp_avg"].shape == (2048,)
    assert optimizer.state[twin["head"].weight]["exp_avg_scale"].shape == (64,)
    assert vars(copy.deepcopy(twin["head"].bias)) == {}
