"""Gradients and parameters as autograd makes them: other strides, expanded, other dtypes; and what autograd
must be told: that a step has written.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import OURS, STATES, Beside, frozen, gradients, make_params, moments_of, same_params, train
from octavo import optim
from torch import Tensor, nn
from torch.nn import Parameter

CONV = (16, 8, 3, 5)
LAST = torch.channels_last


def channels_last(device: str, shape: tuple[int, ...] = CONV, seed: int = 0) -> Parameter:
    (param,) = make_params([shape], device, seed=seed)
    return Parameter(param.detach().to(memory_format=LAST))


def give(param: Parameter, grad: Tensor) -> None:
    """Sets the gradient as it is; .to() would keep strides of its own choice."""
    param.grad = grad


def strided(values: Tensor, like: Tensor) -> Tensor:
    """The values with another tensor's strides."""
    out = torch.empty_strided(like.shape, like.stride(), dtype=values.dtype, device=values.device)
    return out.copy_(values)


# --- Memory order ---------------------------------------------------------------------------------


def layouts(values: Tensor) -> dict[str, Tensor]:
    """The same numbers in different places."""
    wide = torch.zeros(values.shape[0], 2, *values.shape[1:], dtype=values.dtype, device=values.device)
    wide[:, 1] = values
    return {
        "contiguous": values.contiguous(),
        "channels_last": values.contiguous(memory_format=LAST),
        "reversed": values.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        "with gaps": wide[:, 1],
    }


@pytest.mark.parametrize("state", ["fp32", "8bit", "4bit", "4bit-rank1", "fp8"])
@pytest.mark.parametrize("of_param", ["contiguous", "channels_last"])
def test_a_gradient_in_another_order(of_param: str, state: str, device: str) -> None:
    """Gradients are matched by index, not by place in memory; also when the order changes between steps."""
    base = make_params([CONV], device)[0].detach()
    steps = [grads[0].to(device) for grads in gradients([base], 4)]
    params = {}
    for name in ("contiguous", "channels_last", "reversed", "with gaps", "all in turn"):
        param = Parameter(layouts(base)[of_param].clone(memory_format=torch.preserve_format))
        optimizer = optim.AdamW([param], state=state, min_quantized_size=0)
        for count, grad in enumerate(steps):
            forms = layouts(grad)
            give(param, list(forms.values())[count] if name == "all in turn" else forms[name])
            optimizer.step()
        params[name] = param.detach()
    for name, param in params.items():
        assert torch.equal(param, params["contiguous"]), name
        assert param.stride() == layouts(base)[of_param].stride()


def test_channels_last_follows_torch(device: str) -> None:
    beside = Beside("adamw", [channels_last(device), *make_params([(40, 3)], device)], weight_decay=0.1)
    for grads in gradients(beside.params, 5):
        beside.step([g.to(memory_format=LAST) if g.dim() == 4 else g for g in grads])
    entry = beside.ours.state[beside.params[0]]
    assert entry["exp_avg"].stride() == beside.params[0].stride()


@pytest.mark.parametrize("state", STATES)
def test_channels_last_is_a_permutation(state: str, device: str) -> None:
    """Blocks go along memory: as a contiguous parameter of the permuted shape, bit for bit."""
    param = channels_last(device)
    flat = Parameter(param.detach().permute(0, 2, 3, 1).contiguous())
    options = {"state": state, "min_quantized_size": 0, "amsgrad": True}
    ours, plain = optim.AdamW([param], **options), optim.AdamW([flat], **options)
    for (grad,) in gradients([param], 4):
        give(param, strided(grad.to(device), param))
        give(flat, grad.to(device).permute(0, 2, 3, 1).contiguous())
        ours.step()
        plain.step()
    assert torch.equal(param.permute(0, 2, 3, 1), flat)
    (mine,), (theirs,) = moments_of(ours), moments_of(plain)
    assert all(torch.equal(mine[name].permute(0, 2, 3, 1), theirs[name]) for name in theirs)


@pytest.mark.parametrize("state", STATES)
def test_channels_last_through_a_checkpoint(state: str, device: str) -> None:
    """To the same bits in the same order; as numbers (converted) in another one."""
    param = channels_last(device)
    options: dict[str, Any] = {"state": state, "min_quantized_size": 0}
    optimizer = optim.AdamW([param], **options)
    steps = gradients([param], 4)
    train(optimizer, [param], steps[:3])
    saved = optimizer.state_dict()

    same = Parameter(param.detach().clone(memory_format=torch.preserve_format))
    other = optim.AdamW([same], **options)
    other.load_state_dict(saved)
    assert other.state[same]["exp_avg"].stride() == optimizer.state[param]["exp_avg"].stride()
    train(optimizer, [param], steps[3:])
    train(other, [same], steps[3:])
    assert torch.equal(param, same)
    assert frozen(moments_of(optimizer)) == frozen(moments_of(other))

    plain = Parameter(param.detach().contiguous())
    third = optim.AdamW([plain], state="fp32")
    third.load_state_dict(optimizer.state_dict())
    assert frozen(moments_of(third)) == frozen(moments_of(optimizer))


def test_a_parameter_with_gaps_is_refused(device: str) -> None:
    whole = torch.zeros(8, 8, device=device)
    param = Parameter(whole[:, :4])
    with pytest.raises(ValueError, match=r"parameter 0 of group 0: its memory has gaps"):
        optim.AdamW([param])


def test_a_parameter_that_is_part_of_another_tensor(device: str) -> None:
    """Flat buffers of a sharding library: the memory around the part stays as it is."""
    flat = torch.full((300,), 7.0, device=device)
    param = Parameter(flat[100:200])
    train(optim.AdamW([param], lr=0.5), [param], gradients([param], 2))
    assert bool((flat[:100] == 7).all())
    assert bool((flat[200:] == 7).all())
    assert bool((flat[100:200] != 7).all())


@pytest.mark.parametrize("algorithm", ["adamw", "sgd"])
def test_expanded_gradients(algorithm: str, device: str) -> None:
    """sum() of a parameter has a gradient of one number, expanded with strides 0."""
    options: dict[str, Any] = {"momentum": 0.9} if algorithm == "sgd" else {}
    params, plain = make_params(device=device), make_params(device=device)
    ours, other = OURS[algorithm](params, **options), OURS[algorithm](plain, **options)
    for count in range(3):
        for p, q in zip(params, plain, strict=True):
            p.grad = torch.tensor(count - 0.5, device=device).expand(p.shape)
            q.grad = torch.full_like(q, count - 0.5)
            assert p.numel() == 1 or 0 in p.grad.stride()
        ours.step()
        other.step()
    assert same_params(params, plain)


# --- Dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_another_dtype(grad_dtype: torch.dtype, dtype: torch.dtype, device: str) -> None:
    """Where torch lets a gradient have its own dtype, it is read as it is."""
    if not hasattr(Tensor, "grad_dtype"):
        pytest.skip("this torch gives every gradient its parameter's dtype")
    params, wide = make_params(device=device, dtype=dtype), make_params(device=device, dtype=dtype)
    ours, other = optim.AdamW(params, lr=1e-2), optim.AdamW(wide, lr=1e-2)
    for grads in gradients(params, 3):
        for p, q, grad in zip(params, wide, grads, strict=True):
            p.grad_dtype = grad_dtype
            p.grad = grad.to(device=device, dtype=grad_dtype)
            q.grad_dtype = torch.float32
            q.grad = p.grad.float()
        ours.step()
        other.step()
    assert same_params(params, wide)


def test_a_gradient_that_changes_its_dtype(device: str) -> None:
    """Through .data, which bypasses every check."""
    params, plain = make_params(device=device), make_params(device=device)
    ours, other = optim.AdamW(params), optim.AdamW(plain)
    for count, grads in enumerate(gradients(params, 4)):
        rounded = [g.bfloat16().float() if count % 2 else g for g in grads]
        train(other, plain, [rounded])
        for p, grad in zip(params, rounded, strict=True):
            p.grad = grad.to(device)
            if count % 2:
                p.grad.data = p.grad.data.bfloat16()
                assert p.grad.dtype == torch.bfloat16
        ours.step()
    assert same_params(params, plain)


# --- Autograd -------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["adamw", "sgd", "lion"])
def test_versions_grow(algorithm: str, device: str) -> None:
    params = make_params(device=device)
    view = params[0][1:]
    optimizer = OURS[algorithm](params)
    for grads in gradients(params, 3):
        before = [p._version for p in params]
        train(optimizer, params, [[*grads[:-1], None]])
        assert [p._version > b for p, b in zip(params, before, strict=True)] == [True, True, True, False]
        assert view._version == params[0]._version


def test_a_step_between_forward_and_backward_is_an_error(device: str) -> None:
    """Autograd saved the weight: it must know that it has changed."""
    model = nn.Linear(70, 64).to(device)
    optimizer = optim.AdamW8bit(model.parameters())
    train(optimizer, list(model.parameters()), gradients(list(model.parameters()), 1))
    entry = torch.randn(3, 70, device=device, requires_grad=True)
    loss = model(entry).square().sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_stay_as_they_are(device: str) -> None:
    """A step reads gradients: clipping and unscaling happen in the step, not in them."""
    params = make_params(device=device)
    optimizer = optim.AdamW(params, clip_grad_norm=0.01, maximize=True)
    for grads in gradients(params, 2):
        train(optimizer, params, [grads])
        assert all(torch.equal(p.grad.cpu(), g) for p, g in zip(params, grads, strict=True))


def test_inference_parameters(device: str) -> None:
    """Parameters made under inference_mode have no version to grow."""
    with torch.inference_mode():
        param = Parameter(torch.ones(5, device=device), requires_grad=False)
        param.grad = torch.ones(5, device=device)
        optim.AdamW([param], lr=0.5, weight_decay=0.0).step()
        assert bool((param == 0.5).all())


def test_masters_from_another_memory_order(device: str) -> None:
    """A checkpoint of a contiguous model in a channels-last one."""
    params = make_params([(8, 3, 5, 5)], device, torch.bfloat16)
    optimizer = optim.AdamW(params, lr=1e-4, master=32)
    steps = gradients(params, 12)
    train(optimizer, params, steps[:6])
    again = [Parameter(p.detach().clone().to(memory_format=torch.channels_last)) for p in params]
    other = optim.AdamW(again, lr=1e-4, master=32)
    other.load_state_dict(optimizer.state_dict())
    train(optimizer, params, steps[6:])
    train(other, again, steps[6:])
    assert same_params(params, again)
