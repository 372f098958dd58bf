"""`select: measure`: chooses the passes of a shape that are faster in FP8, by timing them on a GPU once.

Passes are chosen by GPU time. Then forward and backward are timed with and without FP8 by the wall clock: a
small matmul stays plain if its launch in FP8 costs the host more time than the GPU saves.

All weights with the same shape share a decision, on all ranks. The first rank that needs it decides for all
of them, through the store of the process group, so no rank waits for another.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .. import _abi
from .devices import log
from .function import Call, apply
from .layer_cache import DGRAD, DY, FORWARD, WGRAD, Addresses, Kinds, Layer, Shape, W, X, cached_layer
from .recipe import Recipe
from .sites import Site

_PASSES = FORWARD | DGRAD | WGRAD
_NAMES = ("forward", "dgrad", "wgrad")
_WARM_UP, _REPEAT = 2, 5
_ROUNDS, _CALLS = 3, 5  # of the wall clock
_NO_MEMORY = "plain, because there is no memory to time both ways in; select='always' takes FP8 untimed"
Timer = Callable[[Callable[[], Any]], float]  # microseconds of a call
decisions: dict[str, int] = {}


def _rounded(tokens: int) -> int:
    """Rounds up to three binary digits, so that similar lengths share a decision."""
    step = 1 << max(tokens.bit_length() - 3, 4)
    return -(-tokens // step) * step


def key_of(kinds: Kinds, recipe: Recipe, shape: Shape) -> str:
    """Returns the text that identifies a decision in logs and in checkpoints."""
    words = [f"{shape.groups}x{_rounded(shape.tokens)}x{shape.inputs}x{shape.outputs}"]
    # "turned_weight" is the word in saved checkpoints.
    words += [
        word
        for word, holds in zip(("one_input", "one_output", "turned_weight"), shape[4:], strict=True)
        if holds
    ]
    words += [str(dtype).removeprefix("torch.") for dtype in (kinds.x, kinds.w, kinds.y)]
    return " ".join([*words, recipe.format, recipe.recipe])


def median_us(work: Callable[[], Any]) -> float:
    times = []
    for turn in range(_WARM_UP + _REPEAT):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()
        if turn >= _WARM_UP:
            times.append(1e3 * start.elapsed_time(end))
    return statistics.median(times)


def wall_us(work: Callable[[], Any]) -> float:
    """Returns the time per call of consecutive calls: the host's time or the GPU's, whichever is longer.
    Synchronizes only the current stream, because work on other streams may wait for this process.
    """
    times, stream = [], torch.cuda.current_stream()
    for _ in range(_ROUNDS):
        stream.synchronize()
        start = time.perf_counter()
        for _ in range(_CALLS):
            work()
        stream.synchronize()
        times.append(1e6 * (time.perf_counter() - start) / _CALLS)
    return min(times)


def plain_passes(
    x: Tensor, w: Tensor, dy: Tensor, kinds: Kinds, transposed_weight: bool
) -> list[Callable[[], Tensor]]:
    """Returns torch's three matmuls of [groups, rows, columns]; dw has the layout of w."""
    x, w, dy = (each.to(kinds.y) for each in (x, w, dy))
    left, right = (x, dy) if transposed_weight else (dy, x)
    return [
        lambda: torch.matmul(x, w),
        lambda: torch.matmul(dy, w.transpose(-1, -2)),
        lambda: torch.matmul(left.transpose(-1, -2), right),
    ]


def times_of(whole: Layer, x: Tensor, w: Tensor, time: Timer = median_us) -> Any:
    """Times all casts and matmuls of x [groups, tokens, inputs] and w [groups, inputs, outputs]."""
    kinds, shape = whole.kinds, whole.shape
    found = _abi.new(_abi.Fp8Times, casts_of_weight=1.0)
    states = torch.ones(3, 2 + whole.numbers.length, dtype=torch.float32, device=x.device)
    dy_groups = 1 if shape.one_output else shape.groups
    # A separate generator: checkpointing recomputes the forward pass without measuring, and its dropout would
    # get other numbers from torch's generator.
    chance = torch.Generator(x.device).manual_seed(0)
    dy = torch.randn(dy_groups, shape.tokens, shape.outputs, device=x.device, dtype=kinds.y, generator=chance)
    stream, state = whole.stream(), states.data_ptr()
    pairs = [whole.empty_pair(operand) for operand in (X, W, DY)]
    for operand, source in ((X, x), (W, w), (DY, dy)):
        _, rows, transposed = pairs[operand]
        # A cast of one orientation: that of forward, or for dy that of dgrad.
        single = cached_layer(kinds, whole.numbers, shape, DGRAD if operand == DY else FORWARD)
        for times, of, second in ((found.cast_two, whole, transposed), (found.cast, single, 0)):
            times[operand] = time(
                lambda o=operand, s=source, p=of, r=rows, t=second: p.cast(o, s, r, t, state, True, stream)
            )
    codes: Addresses = tuple(rows for _, rows, _ in pairs)  # type: ignore[assignment]
    transposed_codes: Addresses = tuple(transposed for _, _, transposed in pairs)  # type: ignore[assignment]
    for number in range(3):
        found.fp8[number] = time(lambda n=number: whole.matmul(n, codes, transposed_codes, stream))
    for number, matmul in enumerate(plain_passes(x, w, dy, kinds, shape.transposed_weight)):
        found.plain[number] = time(matmul)
    return found


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def walls_of(
    kinds: Kinds, recipe: Recipe, shape: Shape, passes: int, x: Tensor, w: Tensor, wall: Timer = wall_us
) -> tuple[float, float]:
    """Times forward and backward through autograd, with these passes in FP8 and with torch's matmuls."""
    chosen = cached_layer(kinds, recipe.numbers, shape, passes)
    states = torch.ones(3, 2 + chosen.numbers.length, dtype=torch.float32, device=x.device)
    if shape.groups == 1:
        x, w = x[0], w[0]
    elif shape.one_input:
        x = x[0]
    y_shape = (shape.tokens, shape.outputs)
    if shape.groups > 1 and not shape.one_output:
        y_shape = (shape.groups, *y_shape)
    # The first call may be an evaluation without gradients. The hooks of the caller's graph, such as those of
    # activation checkpointing, must not see the tensors that are saved here.
    with torch.inference_mode(False), torch.enable_grad(), saved_tensors_hooks(_itself, _itself):
        x, w = ((each.clone() if each.is_inference() else each.detach()).requires_grad_() for each in (x, w))
        dy = torch.ones(y_shape, dtype=kinds.y, device=x.device)

        def in_fp8() -> None:
            # A new site each time: the weight is cast, as after a step.
            call = Call(chosen, Site(), states.data_ptr(), False, y_shape, False, None)
            torch.autograd.grad(apply(x, w, None, call), (x, w), dy)

        def plainly() -> None:
            y = torch.matmul(x.to(kinds.y), w.to(kinds.y))
            torch.autograd.grad(y.sum(0, dtype=kinds.y) if shape.one_output else y, (x, w), dy)

        return wall(in_fp8), wall(plainly)


def decide(kinds: Kinds, recipe: Recipe, shape: Shape, x: Tensor, w: Tensor) -> int:
    """Returns the passes that are faster in FP8."""
    key = key_of(kinds, recipe, shape)
    known = decisions.get(key)
    if known is None:
        passes = _abi.u32()
        try:
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                times = times_of(cached_layer(kinds, recipe.numbers, shape, _PASSES), x, w)
                _abi.check(_abi.library().octavo_fp8_fastest(ctypes.byref(times), ctypes.byref(passes)))
                why = ""
                if passes.value:
                    with _current(x.device):
                        fast, plainly = walls_of(kinds, recipe, shape, passes.value, x, w)
                    why = f"; forward and backward by the wall clock {plainly:.0f} us plain, {fast:.0f} fp8"
                    if fast >= plainly:
                        passes.value = 0
                        why += ": so all are plain"
        except torch.OutOfMemoryError:  # measuring may need more memory than training
            passes.value, times, why = 0, None, ""
        known = decisions[key] = _agreed(key, passes.value)
        text = f"fp8: {key}: {_NO_MEMORY}" if times is None else _text(key, times, known) + why
        log.info("%s", text if known == passes.value else f"{text}; another rank has decided")
    return known


def _current(device: torch.device) -> Any:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _text(key: str, times: Any, passes: int) -> str:
    parts = [
        f"{name} {'fp8' if passes >> i & 1 else 'plain'} "
        f"({times.plain[i]:.0f} us plain, {times.fp8[i]:.0f} fp8)"
        for i, name in enumerate(_NAMES)
    ]
    casts = ", ".join(f"{name} {times.cast_two[i]:.0f}" for i, name in enumerate(("x", "w", "dy")))
    return f"fp8: {key}: {', '.join(parts)}; casts {casts} us"


def _agreed(key: str, passes: int) -> int:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return passes
    store = torch.distributed.distributed_c10d._get_default_store()
    return int(store.compare_set(f"octavo/fp8/{key}", "", str(passes)))
