"""Embeddings that keep 32-bit optimizer states, under bitsandbytes' names, and the losses of transducers,
under transformers' and NeMo's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ._engine import DTYPES
from ._transducer import transducer_joint_loss, transducer_loss
from .optim.groups import set_state


class Embedding(nn.Embedding):
    """nn.Embedding whose weight keeps fp32 states in any optimizer of octavo.optim."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        set_state(self.weight, state="fp32")


class StableEmbedding(Embedding):
    """An embedding with Xavier-uniform weights and a layer norm after it, as in the paper on 8-bit
    optimizers.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, *args, **kwargs)
        # The norm does not have the weight's dtype: bitsandbytes' is fp32 for a bf16 weight, too.
        self.norm = nn.LayerNorm(embedding_dim, device=self.weight.device)

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].fill_(0)

    def forward(self, input: Tensor) -> Tensor:
        # The norm computes in its own dtype, whatever the weight's is.
        embedded = super().forward(input).to(self.norm.weight.dtype)
        return self.norm(embedded).to(self.weight.dtype)  # type: ignore[no-any-return]


def tdt_loss(
    token_logits: Tensor,
    duration_logits: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank_token_id: int,
    durations: Sequence[int],
    sigma: float = 0.0,
    reduction: str = "mean",
    *,
    omega: float = 0.0,
) -> Tensor:
    """Returns the loss of a token-and-duration transducer in fp32. The arguments are transformers'.

    token_logits is [batch, frames, labels + 1, tokens with blank], and duration_logits has one output for
    each of `durations` instead. If it is None, the last outputs of token_logits are the durations', as in
    NeMo's joint network, and the gradient is one tensor. `omega` is the probability that a call computes
    plain RNN-T; torch's random numbers decide. reduction: mean_batch, mean (each loss is divided by its
    number of labels), mean_volume, sum or none. The loss of an empty transcript is divided by one. A clip
    that no alignment can end has an infinite loss and no gradient. octavo/transducer.h defines the loss.
    """
    if len(durations) == 0:
        raise ValueError("tdt_loss: durations is empty, expected at least one; without durations: rnnt_loss")
    labels = (targets, logit_lengths, target_lengths)
    logits = _checked_logits("tdt_loss", token_logits, duration_logits, labels, len(durations))
    numbers = (_seed(omega > 0), blank_token_id, list(durations), sigma, omega, reduction)
    return transducer_loss(*logits, *labels, *numbers)[0]  # type: ignore[no-any-return]


def rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank_token_id: int,
    reduction: str = "mean_volume",
) -> Tensor:
    """Returns the loss of a plain transducer (RNN-T). The arguments are transformers'; see tdt_loss."""
    labels = (targets, logit_lengths, target_lengths)
    checked = _checked_logits("rnnt_loss", logits, None, labels, 0)
    return transducer_loss(*checked, *labels, None, blank_token_id, [], 0.0, 0.0, reduction)[0]  # type: ignore[no-any-return]


def tdt_joint_loss(
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank_token_id: int,
    durations: Sequence[int],
    sigma: float = 0.0,
    reduction: str = "mean",
    *,
    omega: float = 0.0,
    dropout: float = 0.0,
    tile_cells: int = 0,
) -> Tensor:
    """tdt_loss of linear(dropout(relu(encoder[:, :, None] + predictor[:, None])), weight, bias). The logits
    are computed in tiles of about `tile_cells` cells (0: automatic), and again for the gradient, so they are
    never in memory all together.

    encoder is [batch, frames, hidden] and predictor [batch, labels + 1, hidden], both projected; weight is
    [tokens with blank + durations, hidden], as in nn.Linear, bias [tokens with blank + durations]. Matmuls
    are in the encoder's dtype, sums in fp32. torch's random numbers give the seed of the dropout. The host
    reads the lengths, so if they are on the CPU, it does not wait for a GPU.
    """
    if len(durations) == 0:
        raise ValueError(
            "tdt_joint_loss: durations is empty, expected at least one; without durations: rnnt_joint_loss"
        )
    labels = (targets, logit_lengths, target_lengths)
    joint = _checked_joint("tdt_joint_loss", encoder, predictor, weight, bias, labels, len(durations))
    seed = _seed(omega > 0 or dropout > 0)
    numbers = (seed, blank_token_id, list(durations), sigma, omega, dropout, tile_cells, reduction)
    return transducer_joint_loss(*joint, *labels, *numbers)[0]  # type: ignore[no-any-return]


def rnnt_joint_loss(
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank_token_id: int,
    reduction: str = "mean_volume",
    *,
    dropout: float = 0.0,
    tile_cells: int = 0,
) -> Tensor:
    """rnnt_loss of a joint network's logits, which are computed in tiles; see tdt_joint_loss."""
    labels = (targets, logit_lengths, target_lengths)
    joint = _checked_joint("rnnt_joint_loss", encoder, predictor, weight, bias, labels, 0)
    numbers = (_seed(dropout > 0), blank_token_id, [], 0.0, 0.0, dropout, tile_cells, reduction)
    return transducer_joint_loss(*joint, *labels, *numbers)[0]  # type: ignore[no-any-return]


class TDTLoss(nn.Module):
    """tdt_loss with the arguments of NeMo's TDTLossNumba: `acts` has tokens, blank and durations."""

    def __init__(
        self,
        blank: int,
        durations: Sequence[int] | None = None,
        reduction: str = "mean_batch",
        fastemit_lambda: float = 0.0,
        clamp: float = -1,
        sigma: float = 0.0,
        omega: float = 0.0,
    ) -> None:
        super().__init__()
        if fastemit_lambda != 0:
            raise ValueError(
                f"TDTLoss: fastemit_lambda is {fastemit_lambda}, expected 0: it is not supported"
            )
        if clamp > 0:
            raise ValueError(f"TDTLoss: clamp is {clamp}, expected 0 or less (off): it is not supported")
        self.blank, self.durations, self.reduction = blank, list(durations or ()), reduction
        self.sigma, self.omega = sigma, omega

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        lengths, options = (act_lens, label_lens), (self.blank, self.durations, self.sigma, self.reduction)
        return tdt_loss(acts, None, labels, *lengths, *options, omega=self.omega)


_Labels = tuple[Tensor, Tensor, Tensor]  # targets, logit_lengths, target_lengths


def _checked_logits(
    name: str, token_logits: Tensor, duration_logits: Tensor | None, labels: _Labels, outputs: int
) -> tuple[Tensor, Tensor | None]:
    """Checks shapes, types and devices, which the core does not check. The core checks the values."""
    if token_logits.dim() != 4:
        shape = tuple(token_logits.shape)
        raise ValueError(f"{name}: logits are {shape}, expected [batch, frames, labels + 1, outputs]")
    token_logits = _checked_dtype(name, "logits are", token_logits)
    if duration_logits is not None:
        want = (*token_logits.shape[:3], outputs)
        if tuple(duration_logits.shape) != want:
            raise ValueError(f"{name}: duration_logits are {tuple(duration_logits.shape)}, expected {want}")
        _check_device(name, "duration_logits", duration_logits, "token_logits", token_logits)
        duration_logits = duration_logits.to(token_logits.dtype)
    elif token_logits.shape[3] <= outputs:
        raise ValueError(
            f"{name}: logits have {token_logits.shape[3]} outputs, expected more than the {outputs} durations"
        )
    _check_labels(name, token_logits.shape[0], *labels)
    return token_logits, duration_logits


def _checked_joint(
    name: str,
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: _Labels,
    outputs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    shapes = [tuple(x.shape) for x in (encoder, predictor, weight)]
    if [len(shape) for shape in shapes] != [3, 3, 2] or len({shape[-1] for shape in shapes}) > 1:
        raise ValueError(
            f"{name}: encoder, predictor and weight are {shapes[0]}, {shapes[1]} and {shapes[2]}, expected "
            "[batch, frames, hidden], [batch, labels + 1, hidden] and [outputs, hidden]"
        )
    if shapes[0][0] != shapes[1][0]:
        raise ValueError(f"{name}: predictor has {shapes[1][0]} clips, expected the encoder's {shapes[0][0]}")
    if shapes[2][0] <= outputs:
        raise ValueError(
            f"{name}: weight has {shapes[2][0]} outputs, expected more than the {outputs} durations"
        )
    if bias is not None and tuple(bias.shape) != shapes[2][:1]:
        raise ValueError(f"{name}: bias is {tuple(bias.shape)}, expected {shapes[2][:1]}")
    for what, given in (("predictor", predictor), ("weight", weight), ("bias", bias)):
        if given is not None:
            _check_device(name, what, given, "encoder", encoder)
    encoder = _checked_dtype(name, "encoder is", encoder)
    _check_labels(name, shapes[0][0], *labels)
    return encoder, predictor, weight, bias


def _checked_dtype(name: str, what: str, tensor: Tensor) -> Tensor:
    tensor = tensor.float() if tensor.dtype == torch.float64 else tensor  # transformers accepts fp64
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{name}: {what} {tensor.dtype}, expected float32, bfloat16 or float16")
    return tensor


def _check_device(name: str, what: str, given: Tensor, first: str, expected: Tensor) -> None:
    """Raises ValueError because the core reads all addresses on one device. Labels and lengths are moved."""
    if given.device != expected.device:
        raise ValueError(
            f"{name}: the device of {what} is {given.device}, expected {expected.device}, that of {first}"
        )


def _check_labels(
    name: str, batch: int, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor
) -> None:
    if targets.dim() != 2 or targets.shape[0] != batch:
        raise ValueError(f"{name}: targets are {tuple(targets.shape)}, expected [{batch}, labels]")
    all_lengths = {"logit_lengths": logit_lengths, "target_lengths": target_lengths}
    for what, lengths in all_lengths.items():
        if tuple(lengths.shape) != (batch,):
            raise ValueError(f"{name}: {what} are {tuple(lengths.shape)}, expected [{batch}]")
    for what, given in {"targets": targets, **all_lengths}.items():
        if given.is_floating_point() or given.is_complex():
            raise ValueError(f"{name}: {what} are {given.dtype}, expected integers")


def _seed(drawn: bool) -> Tensor | None:
    """Returns a seed as a tensor, so that a compiled graph can draw it."""
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu") if drawn else None
