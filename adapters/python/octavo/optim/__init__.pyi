# Made by scripts/make_stubs from the descriptions of the algorithms; classes.py makes the classes.
from typing import Any, TypedDict

from torch import Tensor
from typing_extensions import Unpack

from .classes import CLASSES as CLASSES
from .compat.pytorch_lars import PytorchLARS as PytorchLARS
from .groups import GlobalOptimManager as GlobalOptimManager
from .groups import param_groups as param_groups
from .groups import set_state as set_state
from .offload.cpu_offload import CPUOffloadOptimizer as CPUOffloadOptimizer
from .optimizer import Optimizer as Optimizer

__all__: list[str]

class _Options(TypedDict, total=False):
    state: str | None
    block_size: int | None
    master: str | int
    min_quantized_size: int | None
    clip_grad_norm: float | None
    skip_nonfinite: bool
    gradient_release: bool
    offload: str
    offload_gradients: bool
    accumulate_in_fp32: bool
    offload_ratio: float
    gpu_state_budget: int | None
    min_offload_size: int
    maximize: bool
    capturable: bool
    fused: bool | None
    foreach: bool | None
    seed: int
    bf16_stochastic_round: bool
    is_paged: bool
    differentiable: bool

class Adam(Optimizer):
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        **given: Unpack[_Options],
    ) -> None: ...

class Adam8bit(Adam): ...
class Adam4bit(Adam): ...
class AdamFp8(Adam): ...
class Adam32bit(Adam): ...
class PagedAdam(Adam): ...
class PagedAdam8bit(Adam8bit): ...
class PagedAdam32bit(Adam32bit): ...

class AdamW(Optimizer):
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        **given: Unpack[_Options],
    ) -> None: ...

class AdamW8bit(AdamW): ...
class AdamW4bit(AdamW): ...
class AdamWFp8(AdamW): ...
class AdamW32bit(AdamW): ...
class PagedAdamW(AdamW): ...
class PagedAdamW8bit(AdamW8bit): ...
class PagedAdamW32bit(AdamW32bit): ...

class SGD(Optimizer):
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        **given: Unpack[_Options],
    ) -> None: ...

class SGD8bit(SGD): ...
class SGD4bit(SGD): ...
class SGDFp8(SGD): ...
class SGD32bit(SGD): ...
class PagedSGD(SGD): ...
class PagedSGD8bit(SGD8bit): ...
class PagedSGD32bit(SGD32bit): ...

class Lion(Optimizer):
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.0001,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        **given: Unpack[_Options],
    ) -> None: ...

class Lion8bit(Lion): ...
class Lion4bit(Lion): ...
class LionFp8(Lion): ...
class Lion32bit(Lion): ...
class PagedLion(Lion): ...
class PagedLion8bit(Lion8bit): ...
class PagedLion32bit(Lion32bit): ...

class RMSprop(Optimizer):
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        **given: Unpack[_Options],
    ) -> None: ...

class RMSprop8bit(RMSprop): ...
class RMSprop4bit(RMSprop): ...
class RMSpropFp8(RMSprop): ...
class RMSprop32bit(RMSprop): ...
class PagedRMSprop(RMSprop): ...
class PagedRMSprop8bit(RMSprop8bit): ...
class PagedRMSprop32bit(RMSprop32bit): ...

class Adagrad(Optimizer):
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        **given: Unpack[_Options],
    ) -> None: ...

class Adagrad8bit(Adagrad): ...
class Adagrad4bit(Adagrad): ...
class AdagradFp8(Adagrad): ...
class Adagrad32bit(Adagrad): ...
class PagedAdagrad(Adagrad): ...
class PagedAdagrad8bit(Adagrad8bit): ...
class PagedAdagrad32bit(Adagrad32bit): ...

class LARS(Optimizer):
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.01,
        momentum: float = 0.9,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        max_unorm: float = 0.02,
        trust_ratio: bool = False,
        trust_coefficient: float = 0.001,
        **given: Unpack[_Options],
    ) -> None: ...

class LARS8bit(LARS): ...
class LARS4bit(LARS): ...
class LARSFp8(LARS): ...
class LARS32bit(LARS): ...
class PagedLARS(LARS): ...
class PagedLARS8bit(LARS8bit): ...
class PagedLARS32bit(LARS32bit): ...

class LAMB(Optimizer):
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.001,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        max_unorm: float = 1.0,
        trust_ratio: bool = False,
        **given: Unpack[_Options],
    ) -> None: ...

class LAMB8bit(LAMB): ...
class LAMB4bit(LAMB): ...
class LAMBFp8(LAMB): ...
class LAMB32bit(LAMB): ...
class PagedLAMB(LAMB): ...
class PagedLAMB8bit(LAMB8bit): ...
class PagedLAMB32bit(LAMB32bit): ...

class AdEMAMix(Optimizer):
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.001,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 5.0,
        t_alpha: float | None = None,
        t_beta3: float | None = None,
        eps: float = 1e-08,
        weight_decay: float = 0.01,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        **given: Unpack[_Options],
    ) -> None: ...

class AdEMAMix8bit(AdEMAMix): ...
class AdEMAMix4bit(AdEMAMix): ...
class AdEMAMixFp8(AdEMAMix): ...
class AdEMAMix32bit(AdEMAMix): ...
class PagedAdEMAMix(AdEMAMix): ...
class PagedAdEMAMix8bit(AdEMAMix8bit): ...
class PagedAdEMAMix32bit(AdEMAMix32bit): ...
