"""octavo.nn.tdt_joint_loss and rnnt_joint_loss: against the losses on logits that torch makes."""

from __future__ import annotations

import pytest
import torch
from octavo import OctavoError, _transducer
from octavo.nn import rnnt_joint_loss, rnnt_loss, tdt_joint_loss, tdt_loss
from torch import Tensor

DURATIONS = [0, 1, 2, 3, 4]
BLANK, HIDDEN = 5, 12
LABELS = (
    torch.tensor([[0, 3, 1, 4], [2, 2, 0, 0], [1, 0, 0, 0]]),
    torch.tensor([8, 7, 3]),
    torch.tensor([4, 2, 0]),
)


def make(dtype: torch.dtype = torch.float32, outputs: int = BLANK + 1 + len(DURATIONS)) -> list[Tensor]:
    """Encoder, predictor, weight and bias; the last two stay in fp32, as under autocast."""
    torch.manual_seed(1)
    shapes = ((3, 8, HIDDEN), (3, 5, HIDDEN), (outputs, HIDDEN), (outputs,))
    values = [torch.randn(shape) for shape in shapes]
    return [x.to(dtype).requires_grad_() for x in values[:2]] + [x.requires_grad_() for x in values[2:]]


def logits_of(encoder: Tensor, predictor: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    hidden = torch.relu(encoder[:, :, None] + predictor[:, None])
    return torch.nn.functional.linear(hidden, weight, bias)


def gradients(loss: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
    upstream = torch.arange(1.0, loss.numel() + 1).reshape(loss.shape)
    return torch.autograd.grad(loss, of, upstream)


@pytest.mark.parametrize("reduction", ["mean_batch", "mean", "mean_volume", "sum", "none"])
def test_equals_the_loss_on_plain_logits(reduction: str) -> None:
    given = make()
    found = tdt_joint_loss(*given, *LABELS, BLANK, DURATIONS, 0.02, reduction, tile_cells=13)
    want = tdt_loss(logits_of(*given), None, *LABELS, BLANK, DURATIONS, 0.02, reduction)
    assert (found.dtype, found.shape) == (want.dtype, want.shape)
    torch.testing.assert_close(found, want, rtol=1e-6, atol=0)
    for ours, theirs in zip(gradients(found, given), gradients(want, given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


def test_rnnt_and_a_network_without_bias() -> None:
    given = make(outputs=BLANK + 1)
    found = rnnt_joint_loss(*given, *LABELS, BLANK)
    want = rnnt_loss(logits_of(*given), *LABELS, BLANK)
    torch.testing.assert_close(found, want, rtol=1e-6, atol=0)
    bare = rnnt_joint_loss(*given[:3], None, *LABELS, BLANK)
    want = rnnt_loss(logits_of(*given[:3], None), *LABELS, BLANK)
    for ours, theirs in zip(gradients(bare, given[:3]), gradients(want, given[:3]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_element_types(dtype: torch.dtype) -> None:
    given = make(dtype)
    loss = tdt_joint_loss(*given, *LABELS, BLANK, DURATIONS)
    found = gradients(loss, given)
    assert [x.dtype for x in found] == [dtype, dtype, torch.float32, torch.float32]
    wide = [x.detach().float().requires_grad_() for x in given]
    want = gradients(tdt_loss(logits_of(*wide), None, *LABELS, BLANK, DURATIONS), wide)
    # Units, logits and their gradients are rounded once each, and so is the weight.
    unit = {torch.bfloat16: 2**-9, torch.float16: 2**-12, torch.float64: 2**-24}[dtype]
    for ours, theirs in zip(found, want, strict=True):
        assert float((ours.float() - theirs).norm()) <= 8 * unit * float(theirs.norm())
    if dtype == torch.bfloat16:  # the weight's gradient is not rounded to the products' type
        assert not torch.equal(found[2], found[2].bfloat16().float())


def test_frozen_tensors_get_no_gradient() -> None:
    given = make()
    given[2] = given[2].detach()
    loss = tdt_joint_loss(*given, *LABELS, BLANK, DURATIONS)
    loss.backward()
    assert given[2].grad is None
    assert all(given[i].grad is not None for i in (0, 1, 3))
    with torch.no_grad():
        assert not tdt_joint_loss(*given, *LABELS, BLANK, DURATIONS).requires_grad


def test_dropout_follows_torchs_seed() -> None:
    given = make()

    def drawn(seed: int) -> tuple[Tensor, ...]:
        torch.manual_seed(seed)
        loss = tdt_joint_loss(*given, *LABELS, BLANK, DURATIONS, dropout=0.4)
        return loss, *gradients(loss, given)

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    # The loss and its gradient have one mask: a step along the gradient changes the loss as it says.
    torch.manual_seed(1)
    moved = [x.detach() - 1e-4 * g for x, g in zip(given, first[1:], strict=True)]
    change = first[0] - tdt_joint_loss(*moved, *LABELS, BLANK, DURATIONS, dropout=0.4)
    expected = 1e-4 * sum(float(g.square().sum()) for g in first[1:])
    assert change.item() == pytest.approx(expected, rel=0.02)


def test_thousands_of_labels() -> None:
    frames, positions = 3, 2001
    torch.manual_seed(2)
    encoder, predictor, weight = torch.randn(1, frames, 8), torch.randn(1, positions, 8), torch.randn(40, 8)
    targets = torch.randint(0, 30, (1, positions - 1))
    labels = targets, torch.tensor([frames]), torch.tensor([positions - 1])
    found = tdt_joint_loss(encoder, predictor, weight, None, *labels, 30, DURATIONS, reduction="sum")
    logits = logits_of(encoder, predictor, weight, None)
    want = tdt_loss(logits, None, *labels, 30, DURATIONS, reduction="sum")
    torch.testing.assert_close(found, want, rtol=1e-6, atol=0)


def test_opcheck() -> None:
    numbers = (torch.tensor(5), BLANK, DURATIONS, 0.02, 0.0, 0.2, 16, "mean")
    torch.library.opcheck(_transducer.transducer_joint_loss, (*make(), *LABELS, *numbers))
    bare = (*make()[:3], None, *LABELS, None, BLANK, DURATIONS, 0.0, 0.0, 0.0, 0, "none")
    torch.library.opcheck(_transducer.transducer_joint_loss, bare)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_compiled(dropout: float) -> None:
    def run(encoder: Tensor, predictor: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        projected = encoder.tanh(), predictor * 2
        return tdt_joint_loss(*projected, weight, bias, *LABELS, BLANK, DURATIONS, dropout=dropout) + 1

    found = []
    for function in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        given = make()
        torch.manual_seed(7)
        loss = function(*given)
        found.append((loss.detach(), *gradients(loss, given)))
    for eager, compiled in zip(*found, strict=True):
        assert torch.equal(eager, compiled)


def test_wrong_arguments_are_named() -> None:
    encoder, predictor, weight, bias = make()
    targets, frames, _ = LABELS
    names = ("encoder", "predictor", "weight", "bias", "targets", "logit_lengths", "target_lengths")
    right = dict(zip(names, (*make(), *LABELS), strict=True))
    for error, message, changed in (
        (ValueError, r"expected .batch, frames, hidden", {"encoder": encoder[0]}),
        (ValueError, r"expected .batch, frames, hidden", {"weight": weight[:, 1:]}),
        (ValueError, "predictor has 2 clips, expected the encoder's 3", {"predictor": predictor[:2]}),
        (ValueError, "bias is .*expected", {"bias": bias[1:]}),
        (ValueError, "outputs, expected more than", {"durations": list(range(11))}),
        (ValueError, "durations is empty", {"durations": []}),
        (ValueError, "encoder is torch.int64", {"encoder": encoder.long()}),
        (ValueError, "targets are torch.float32", {"targets": targets.float()}),
        (ValueError, "logit_lengths are", {"logit_lengths": frames[:2]}),
        *(
            (
                ValueError,
                f"tdt_joint_loss: the device of {name} is meta, expected cpu, that of encoder",
                {name: right[name].to("meta")},
            )
            for name in ("predictor", "weight", "bias")
        ),
        (OctavoError, r"targets\[0\]\[1\]: got 5", {"targets": targets.index_fill(1, torch.tensor([1]), 5)}),
        (OctavoError, r"target_lengths\[1\]: got 5", {"target_lengths": torch.tensor([4, 5, 1])}),
        (OctavoError, "dropout: got 1,", {"dropout": 1.0}),
        (OctavoError, "tile_cells: got -1", {"tile_cells": -1}),
    ):
        call = {**right, "blank_token_id": BLANK, "durations": DURATIONS, **changed}
        with pytest.raises(error, match=message):
            tdt_joint_loss(**call)  # type: ignore[arg-type]
