"""torchao's CPUOffloadOptimizer: an optimizer of octavo.optim with offload="host", or any optimizer of torch
on copies of the parameters in host memory.

It differs from torchao's in these points. Groups may change at any time. With offload_gradients, gradients
accumulate in host memory. clip_grad_norm clips inside the step. A gradient that was written after its hook
(unscaled, clipped, averaged) is copied again, and so is a weight that other code has written. The state dict
is that of the inner optimizer. Copies are ordered by streams; the host waits only for gradients.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...checkpoint.importers import refuse_zero
from ..hooks import averaged_later
from ..optimizer import Optimizer
from ..options import checked_clip
from .offloaded_param import OffloadedParam

_NOT_OPTIONS = ("params", "param_names")


class CPUOffloadOptimizer(torch.optim.Optimizer):
    """Steps on the CPU; parameters of fewer than `minimal_size` elements are stepped on their device.
    `optimizer_class` is called with `params` and the other arguments. If it is a class of octavo.optim, the
    result is an object of that class with offload="host".
    """

    def __new__(
        cls, params: Any = None, optimizer_class: Any = torch.optim.AdamW, *given: Any, **options: Any
    ) -> Any:
        if isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer):
            size = options.pop("minimal_size", 4096)
            options = {"offload": "host", "min_offload_size": size, **options}
            return optimizer_class(params, *given, **options)
        return super().__new__(cls)

    def __init__(
        self,
        params: Any,
        optimizer_class: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        *,
        offload_gradients: bool = False,
        minimal_size: int = 4096,
        clip_grad_norm: float | None = None,
        **options: Any,
    ) -> None:
        if optimizer_class is torch.optim.AdamW:
            options.setdefault("fused", True)
        self._make, self._options = optimizer_class, options
        self._minimal_size, self._offload_gradients = minimal_size, bool(offload_gradients)
        self._clip = checked_clip(clip_grad_norm)
        self._away: dict[Tensor, OffloadedParam] = {}
        self._inner: dict[Tensor, InnerOptimizer] = {}  # the optimizer of each, by its parameter
        self._groups: dict[Tensor, dict[str, Any]] = {}  # the group of each parameter
        self._small: InnerOptimizer | None = None
        self._streams: dict[torch.device, Any] = {}
        self._hooks: list[Any] = []
        weakref.finalize(self, _end, self._hooks, self._streams)
        self.grad_norm: Tensor | None = None  # of the last step, before clipping; None if it was not computed
        params = _as_lists(params)
        probe = optimizer_class([_like_first(params)], **options)
        _check_step(probe)
        super().__init__(params, probe.defaults)
        if self._offload_gradients:
            # GradScaler would unscale only gradients on the device. With this, step() gets its tensors.
            self._step_supports_amp_scaling = True

    def __getstate__(self) -> Any:
        raise TypeError("CPUOffloadOptimizer cannot be copied or pickled: save its state_dict()")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._add_inner_optimizers(self.param_groups[-1])

    def _add_inner_optimizers(self, group: dict[str, Any]) -> None:
        """Makes the inner optimizers of the group's parameters. Frozen parameters may be added later."""
        self._groups.update(dict.fromkeys(group["params"], group))
        new = [p for p in group["params"] if p.requires_grad and p not in self._inner]
        options, hook = _options_of(group), weakref.WeakMethod(self._hook)
        small = [param for param in new if param.numel() < self._minimal_size]
        if small:
            inner = {"params": small, **options}
            if self._small is None:
                self._small = InnerOptimizer(self._make([inner], **self._options))
            else:
                self._small.optimizer.add_param_group(inner)
            self._small.given.append(group)
            self._small.params += small
            self._inner.update(dict.fromkeys(small, self._small))

        def complete(param: Tensor) -> None:
            if (call := hook()) is not None:
                call(param)

        for param in new:
            if param.numel() >= self._minimal_size:
                away = self._away[param] = OffloadedParam(param, self._stream(param.device))
                inner = {"params": [away.copy], **options}
                self._inner[param] = InnerOptimizer(self._make([inner], **self._options), [param])
                self._hooks.append(param.register_post_accumulate_grad_hook(complete))

    def _stream(self, device: torch.device) -> Any:
        if device.type != "cpu" and device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams.get(device)

    def _hook(self, param: Tensor) -> None:
        away, group = self._away.get(param), self._groups.get(param)
        if not any(each is group for each in self.param_groups):
            return  # its group was deleted
        # DistributedDataParallel averages gradients after the hooks, so step() copies them.
        if away is not None and param.grad is not None and not averaged_later(param):
            away.copy_grad(self._offload_gradients)

    # --- The step ---------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if getattr(self, "found_inf", None) is not None:
            raise RuntimeError(
                "CPUOffloadOptimizer: GradScaler does not reach gradients that offload_gradients has taken; "
                "use offload_gradients=False, or an optimizer of octavo.optim with fused=True"
            )
        self._update_inner_groups()
        for device, stream in self._streams.items():
            stream.wait_stream(torch.cuda.current_stream(device))  # the current stream may still read weights
        stepped = [p for p in self._groups if p in self._inner]
        away = [self._away[p] for p in stepped if p in self._away and self._away[p].has_gradient()]
        small = [p for p in stepped if p not in self._away and p.grad is not None]
        for each in away:
            each.refresh()
        factor = self._clipping(away, small)
        if small and self._small is not None:
            if factor is not None:
                for param in small:
                    param.grad.mul_(factor.to(param.device))  # type: ignore[union-attr]
            self._small.optimizer.step()
        for each in away:
            each.step(self._inner[each.param].optimizer.step, factor)
        for device, stream in self._streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)
        return loss

    def _update_inner_groups(self) -> None:
        """Gives the inner optimizers the present groups: options and parameters may change between any two
        steps.
        """
        for group in self.param_groups:  # parameters may have been unfrozen
            self._add_inner_optimizers(group)
        self._groups = {param: group for group in self.param_groups for param in group["params"]}
        small: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for group in self.param_groups:
            options, here = _options_of(group), []
            for param in (p for p in group["params"] if p in self._inner):
                if param in self._away:
                    self._inner[param].optimizer.param_groups[0].update(options)
                else:
                    here.append(param)
            if here:
                small.append((group, {"params": here, **options}))
        if self._small is not None:
            self._small.replace_groups(small)

    def _clipping(self, away: list[OffloadedParam], small: list[Tensor]) -> Tensor | None:
        """Returns the factor of all gradients, which torch.nn.utils.clip_grad_norm_ would use, or None."""
        self.grad_norm = None
        if self._clip is None or not (away or small):
            return None
        grads = [each.complete() for each in away] + [p.grad for p in small if p.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(grad).float().cpu() for grad in grads])
        self.grad_norm = torch.linalg.vector_norm(norms)
        return torch.clamp(self._clip / (self.grad_norm + 1e-6), max=1.0)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for away in self._away.values():
            away.forget()
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def sync_params(self, way: str = "to_host") -> None:
        """Copies the parameters to host memory, or the copies to the parameters."""
        if way not in ("to_host", "to_device"):
            raise ValueError(f"Invalid way: {way!r}, expected 'to_host' or 'to_device'")
        for away in self._away.values():
            away.sync(way == "to_host")

    # --- Files ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the form of the inner optimizer, which can load it, too."""
        numbers = {id(p): i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        states: dict[int, Any] = {}
        self._update_inner_groups()
        for inner in dict.fromkeys(self._inner[p] for p in self._groups if p in self._inner):
            saved = inner.state_dict()["state"]
            states.update({numbers[id(p)]: saved[i] for i, p in enumerate(inner.params) if i in saved})
        groups = [{**g, "params": [numbers[id(p)] for p in g["params"]]} for g in self.param_groups]
        return {"state": dict(sorted(states.items())), "param_groups": groups}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state dict of this class, of the inner optimizer, or of torchao's class."""
        if "offloaded" in state_dict:
            self._load_torchao(state_dict)
            return
        refuse_zero(state_dict)
        saved = state_dict["param_groups"]
        found, wanted = ([len(group["params"]) for group in some] for some in (saved, self.param_groups))
        if found != wanted:
            raise ValueError(f"loaded state dict has groups of {found} parameters, expected {wanted}")
        states: dict[Tensor, Any] = {}
        for group, other in zip(self.param_groups, saved, strict=True):
            group.update(_options_of(other))
            for param, number in zip(group["params"], other["params"], strict=True):
                if number in state_dict["state"]:
                    states[param] = state_dict["state"][number]
        self._update_inner_groups()
        for inner in dict.fromkeys(self._inner[p] for p in self._groups if p in self._inner):
            inner.load([states.get(param) for param in inner.params])

    def _load_torchao(self, state_dict: Mapping[str, Any]) -> None:
        """Loads torchao's form: a state dict for each parameter on the CPU, and one for all others."""
        rest = state_dict.get("on-device")
        self._update_inner_groups()
        stepped = [p for p in self._groups if p in self._inner]
        away = [p for p in stepped if p in self._away]
        small = 0 if rest is None else sum(len(group["params"]) for group in rest["param_groups"])
        found, wanted = (len(state_dict["offloaded"]), small), (len(away), len(stepped) - len(away))
        if found != wanted:
            raise ValueError(
                f"loaded state dict has {found[0]} parameters on the CPU and {found[1]} on the device, "
                f"expected {wanted[0]} and {wanted[1]}"
            )
        for param, saved in zip(away, state_dict["offloaded"], strict=True):
            self._groups[param].update(_options_of(saved["param_groups"][0]))
            self._inner[param].load([saved["state"].get(0)])
        if self._small is not None and rest is not None:
            self._small.load([rest["state"].get(i) for i in range(small)])


class InnerOptimizer:
    """An optimizer of some parameters, or of their copies."""

    def __init__(self, optimizer: torch.optim.Optimizer, params: Iterable[Tensor] = ()) -> None:
        self.optimizer = optimizer
        self.params = list(params)  # not the copies
        self.given: list[dict[str, Any]] = []  # for small parameters: the given group of each inner group

    def replace_groups(self, groups: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """Gives the optimizer these groups: pairs of a given group and the contents of its inner group. Inner
        groups are updated in place, because optimizers add keys at run time. States whose parameter is in no
        group are kept, as in torch.
        """
        inner = dict[int, dict[str, Any]]()
        for given, group in zip(self.given, self.optimizer.param_groups, strict=True):
            inner.setdefault(id(given), group)
        found = [inner.get(id(given), {}) for given, _ in groups]
        for group, (_, contents) in zip(found, groups, strict=True):
            group.update(contents)
        self.optimizer.param_groups[:] = found
        self.given = [given for given, _ in groups]
        self.params = [param for group in found for param in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimizer's state dict. torch raises an error if a state's parameter has no group, so
        these states are removed meanwhile.
        """
        state = self.optimizer.state
        listed = {param for group in self.optimizer.param_groups for param in group["params"]}
        rest = {p: state.pop(p) for p in list(state) if isinstance(p, Tensor) and p not in listed}
        try:
            return self.optimizer.state_dict()
        finally:
            state.update(rest)

    def load(self, states: list[Any]) -> None:
        saved = self.state_dict()
        # These are copies, because torch would use the given tensors themselves.
        saved["state"] = {i: copy.deepcopy(state) for i, state in enumerate(states) if state is not None}
        self.optimizer.load_state_dict(saved)


def _end(hooks: list[Any], streams: dict[torch.device, Any]) -> None:
    """Removes the hooks and waits for copies that streams still read. Parameters may live longer."""
    for hook in hooks:
        hook.remove()
    for stream in streams.values():
        stream.synchronize()


def _as_lists(params: Any) -> Any:
    """Returns the parameters or groups as lists, which can be read twice."""
    if isinstance(params, Tensor):  # raises torch's message
        torch.optim.Optimizer(params, {})
    lists = []
    for each in params:
        if isinstance(each, dict) and not isinstance(each.get("params"), (Tensor, type(None))):
            each = {**each, "params": list(each["params"])}
        lists.append(each)
    return lists


def _like_first(params: Any) -> Tensor:
    """Returns a small tensor with the dimensions of the first parameter: Muon accepts only matrices."""
    first = next(iter(params), None)
    while isinstance(first, (dict, list, tuple)):  # groups, and pairs of names and parameters
        first = first.get("params") if isinstance(first, dict) else first[-1] if first else None
    dims = first.dim() if isinstance(first, Tensor) else 1
    return torch.zeros((1,) * dims, dtype=torch.float32, device="cpu")


def _check_step(optimizer: torch.optim.Optimizer) -> None:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"CPUOffloadOptimizer: {type(optimizer).__name__} evaluates its closure several times in a step, "
            "for all parameters together, so it cannot step one parameter at a time in host memory; use it "
            "directly"
        )


def _options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in _NOT_OPTIONS}
