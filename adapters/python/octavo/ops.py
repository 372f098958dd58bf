"""The step as an operator of torch, `torch.ops.octavo.step`, for code that torch.compile traces in full.

The optimizers of octavo.optim call the library directly, which is faster; under torch.compile their step() is
a graph break. A graph can contain this operator: its schema names what it writes, and it has a fake kernel.
"""

from __future__ import annotations

import array
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from . import _abi, _codec, _describe, _engine
from ._shards import rows_of
from .optim.device_buffers import DeviceBuffers
from .optim.group_options import cells_of
from .optim.options import RATE_SLACK
from .optim.states import state

# The schema is given because torch 2.5 cannot infer it from list[Tensor].
_SCHEMA = (
    "(str algorithm, Tensor(a1!)[] params, Tensor[] grads, Tensor(a3!)[] codes, Tensor(a4!)[] scales, "
    "Tensor(a5!)[] masters, Tensor(a6!) step, Tensor lr, float beta1=0.9, float beta2=0.999, float eps=1e-8, "
    "float weight_decay=0.0, float momentum=0.0, bool maximize=False, bool stochastic=False, "
    'SymInt block_size=0, SymInt seed=0, str names="", float[] values=[]) -> ()'
)


@torch.library.custom_op(
    "octavo::step",
    mutates_args=("params", "codes", "scales", "masters", "step"),
    device_types=("cpu", "cuda"),
    schema=_SCHEMA,
)
def step(
    algorithm: str,
    params: list[Tensor],
    grads: list[Tensor],
    codes: list[Tensor],
    scales: list[Tensor],
    masters: list[Tensor],
    step: Tensor,
    lr: Tensor,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    maximize: bool = False,
    stochastic: bool = False,
    block_size: int = 0,
    seed: int = 0,
    names: str = "",
    values: Sequence[float] = (),
) -> None:
    """Makes one step of `algorithm` (octavo.optim's `algorithm`) on contiguous tensors of one device.

    `codes` has the first moments of all parameters, then those of the next slot, and so on. Their dtype is
    the format: float32, bfloat16, uint8 in the parameter's shape (8bit) or packed and flat (4bit), float8.
    `scales` has a float32 tensor for each, empty if the format has none. `masters` is empty, or has the int8
    or int16 master bits of each (bf16) parameter. `step` (0-d int64, on the CPU or on the device) is the
    number of earlier steps and is incremented; `lr` is 0-d. Both are checked if they are on the CPU. `names`
    (separated by commas) and `values` are further options of the algorithm, numbers or flags (0 or 1); other
    options have its defaults. Zeros are the initial state. 4bit-rank1 states are not supported.
    """
    known = _describe.algorithms()
    if algorithm not in known:
        raise ValueError(f"octavo::step: algorithm is {algorithm!r}, expected one of {', '.join(known)}")
    described = known[algorithm]
    if step.dtype != torch.int64 or step.numel() != 1:
        raise ValueError(f"octavo::step: step is {step.dtype} of {step.numel()} elements, expected one int64")
    # A step count on a GPU is not checked, because the host would wait.
    if step.device.type == "cpu" and int(step) < 0:
        raise ValueError(f"octavo::step: step is {int(step)}, expected the number of steps taken, 0 or more")
    if lr.numel() != 1:
        raise ValueError(f"octavo::step: lr has {lr.numel()} elements, expected one")
    if lr.device.type == "cpu" and not -RATE_SLACK <= float(lr) < float("inf"):
        raise ValueError(f"octavo::step: lr is {float(lr)}, expected a number of 0 or more")
    usual = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
    options = _options(described, usual, names, values)
    switches = described.switches(options)
    count, slots = len(params), described.slots(switches)
    moments = len(slots)
    if len(grads) != count or len(codes) != moments * count or len(scales) != len(codes):
        raise ValueError(
            f"octavo::step: got {len(grads)} gradients, {len(codes)} codes and {len(scales)} scales for "
            f"{count} parameters, expected {count}, {moments * count} and {moments * count}"
        )
    if len(masters) not in (0, count):
        raise ValueError(f"octavo::step: got {len(masters)} masters, expected none or {count}")
    if not params:
        return
    device, engine = params[0].device, _engine.Engine(algorithm)
    # The engine needs one count for each tensor, on its device or on the host.
    counts = step.detach().to(step.device if step.device == device else "cpu").reshape(1).repeat(count)
    tensors = (_abi.EngineTensor * count)()
    names_of_moments = [slot.name for slot in slots]
    for place, (slot, param, grad) in enumerate(zip(tensors, params, grads, strict=True)):
        own, residual = codes[place::count], masters[place] if masters else None
        format_ = _format_of(param, own, slots)
        blocks = _codec.default_block_size(format_) > 0
        master: str | int = "stochastic" if stochastic and param.dtype == torch.bfloat16 else "native"
        if residual is not None:
            master = 24 if residual.dtype == torch.int8 else 32
        entry = {state.STEP: counts[place], **dict(zip(names_of_moments, own, strict=True))}
        if blocks:
            found = zip(names_of_moments, scales[place::count], strict=True)
            entry |= {name + state.SCALE: scale for name, scale in found}
        if residual is not None:
            entry[state.MASTER] = residual
        for tensor in (param, grad, *(value for key, value in entry.items() if key != state.STEP)):
            if tensor.device != device or not tensor.is_contiguous():
                raise ValueError(f"octavo::step: tensor {place}: expected contiguous tensors on {device}")
        order = tuple(range(param.dim()))
        kind = state.Kind(format_, block_size if blocks else 0, master, rows_of(param), order)
        _check_sizes(place, param, grad, entry, kind, slots)
        state.describe(slot, entry, param, kind, tuple((s.name, s.moment) for s in slots))
        slot.id, slot.step_on_device = place, counts.device.type != "cpu"
    rate = lr.detach().to(torch.float32)
    args = _engine.new_args()
    for option, cell in cells_of(described, args):
        cell.value = int(options[option.name]) if option.range == _describe.FLAG else options[option.name]
    args.maximize, args.seed, args.decay = int(maximize), seed, 2 if described.decoupled else 1
    if lr.device == device and device.type != "cpu":
        args.scalar_lr = rate.data_ptr()
    else:
        args.lr = max(float(rate), 0.0)
    engine.set_group(0, switches, args, device)
    engine.set(range(count), tensors)  # known_steps is 0 in all; the engine needs only equal numbers
    handles, addresses = array.array("I", range(count)), array.array("Q", [g.data_ptr() for g in grads])
    dtypes = bytes(_engine.DTYPES[grad.dtype] for grad in grads)
    engine.begin(handles.buffer_info()[0], addresses.buffer_info()[0], dtypes, False)
    buffers = DeviceBuffers(engine)
    buffers.add_devices([device])
    alive = buffers.fill_args(False, [], (None, None), False)
    engine.step(buffers.args)
    step.copy_(counts[0].reshape(step.shape))
    del alive


def _options(
    described: _describe.Algorithm, usual: Mapping[str, float], names: str, values: Sequence[float]
) -> dict[str, float]:
    """Returns every option of the algorithm by its name: a given number, or its default."""
    given = [name.strip() for name in names.split(",") if name.strip()]
    known = {option.name: usual.get(option.name, option.default) for option in described.options}
    if unknown := [name for name in given if name not in known]:
        raise ValueError(
            f"octavo::step: {described.name} has no option {unknown[0]!r}, expected one of {', '.join(known)}"
        )
    if len(given) != len(values):
        raise ValueError(f"octavo::step: got {len(values)} values for {len(given)} names, expected as many")
    return {**known, **dict(zip(given, values, strict=True))}


def _format_of(param: Tensor, codes: list[Tensor], slots: Sequence[_describe.Slot]) -> str:
    """Returns the format with the dtype of the codes; packed codes are those of 4bit."""
    if not codes:
        return "fp32"
    for name in _describe.formats():
        dtype = _codec.code_dtype(slots[0].moment, name)
        if dtype == codes[0].dtype and (dtype != torch.uint8 or codes[0].shape == param.shape):
            return name
    return "4bit"


def _check_sizes(
    place: int,
    param: Tensor,
    grad: Tensor,
    entry: Mapping[str, Tensor],
    kind: state.Kind,
    slots: Sequence[_describe.Slot],
) -> None:
    """Checks the sizes of buffers, because the core does not."""
    for tensor in (param, grad):
        if tensor.dtype not in _engine.DTYPES:
            raise ValueError(
                f"octavo::step: tensor {place} is {tensor.dtype}, expected float32, bfloat16 or float16"
            )
    master, numel = entry.get(state.MASTER), param.numel()
    if master is not None and (master.dtype not in (torch.int8, torch.int16) or master.numel() != numel):
        raise ValueError(
            f"octavo::step: master {place} is {master.dtype} of {master.numel()} elements, expected int8 or "
            f"int16 of {numel}"
        )
    if grad.numel() != numel:
        raise ValueError(f"octavo::step: gradient {place} has {grad.numel()} elements, expected {numel}")
    for slot in slots:
        code, scale = entry[slot.name], entry.get(slot.name + state.SCALE)
        if scale is not None and scale.dtype != torch.float32:
            raise ValueError(f"octavo::step: scales {place} are {scale.dtype}, expected torch.float32")
        want = _codec.layout(slot.moment, kind.state, kind.memory_shape, kind.block_size)
        got = (code.numel() * code.element_size(), 0 if scale is None else scale.numel())
        if got != want:
            raise ValueError(
                f"octavo::step: the {slot.moment} moment of parameter {place} has {got[0]} bytes of codes "
                f"and {got[1]} scales, expected {want[0]} and {want[1]} for {kind.state}"
            )


@step.register_fake
def _fake_step(*args: object, **kwargs: object) -> None:
    return None
