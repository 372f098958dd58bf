"""octavo.nn's transducer losses on a GPU: the CPU's numbers, the same each time, without waiting."""

from __future__ import annotations

import pytest
import torch
from octavo.nn import rnnt_joint_loss, tdt_joint_loss, tdt_loss
from torch import Tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")

DURATIONS = [0, 1, 2, 3, 4]
BLANK, HIDDEN = 40, 64
LENGTHS = torch.tensor([30, 21, 1, 9]), torch.tensor([12, 0, 3, 9])


def make(dtype: torch.dtype, device: str) -> tuple[list[Tensor], Tensor]:
    """Encoder, predictor, weight and bias, the last two in fp32; and labels."""
    torch.manual_seed(1)
    outputs = BLANK + 1 + len(DURATIONS)
    values = [torch.randn(4, 30, HIDDEN), torch.randn(4, 13, HIDDEN)]
    values += [torch.randn(outputs, HIDDEN) / 8, torch.randn(outputs)]
    targets = torch.randint(0, BLANK, (4, 12))
    given = [x.to(dtype) for x in values[:2]] + values[2:]
    return [x.to(device).requires_grad_() for x in given], targets.to(device)


def close(ours: Tensor, expected: Tensor, unit: float) -> bool:
    return float((ours.cpu().double() - expected.double()).norm()) <= unit * float(expected.double().norm())


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_joint_loss_has_the_cpus_numbers(dtype: torch.dtype, dropout: float) -> None:
    found = []
    for device in ("cpu", "cuda"):
        given, targets = make(dtype, device)
        torch.manual_seed(3)  # the mask: drawn on the CPU, the same elements on both
        loss = tdt_joint_loss(*given, targets, *LENGTHS, BLANK, DURATIONS, 0.02, "sum", dropout=dropout)
        found.append((loss.detach(), *torch.autograd.grad(loss, given)))
    # A logit may round to either neighbour where sums are made in another order.
    unit = 2**-7 if dtype == torch.bfloat16 else 1e-4
    for cpu, gpu in zip(*found, strict=True):
        assert gpu.dtype == cpu.dtype
        assert close(gpu, cpu, unit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_on_logits_has_the_cpus_numbers(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    logits = torch.randn(4, 30, 13, BLANK + 1 + len(DURATIONS)).to(dtype)
    targets = torch.randint(0, BLANK, (4, 12))
    found = []
    for device in ("cpu", "cuda"):
        given = logits.to(device).requires_grad_()
        labels = [x.to(device) for x in (targets, *LENGTHS)]
        losses = tdt_loss(given, None, *labels, BLANK, DURATIONS, reduction="none")
        found.append((losses.detach(), *torch.autograd.grad(losses.sum(), given)))
    assert close(found[1][0], found[0][0], 1e-6)
    assert close(found[1][1], found[0][1], 2**-8 if dtype == torch.bfloat16 else 1e-5)


def test_nobody_waits_and_bits_repeat() -> None:
    given, targets = make(torch.bfloat16, "cuda")

    def run() -> tuple[Tensor, ...]:
        loss = tdt_joint_loss(*given, targets, *LENGTHS, BLANK, DURATIONS)
        return loss, *torch.autograd.grad(loss, given)

    first = run()  # loads libraries
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_wrong_label_makes_its_clip_nan() -> None:
    given, targets = make(torch.float32, "cuda")
    right = tdt_joint_loss(*given, targets, *LENGTHS, BLANK, DURATIONS, reduction="none")
    targets[3, 2] = 4000
    losses = tdt_joint_loss(*given, targets, *LENGTHS, BLANK, DURATIONS, reduction="none")
    assert losses.isnan().tolist() == [False, False, False, True]
    assert torch.equal(losses[:3], right[:3])
    head = given[2][: BLANK + 1], given[3][: BLANK + 1]
    plain = rnnt_joint_loss(*given[:2], *head, targets, *LENGTHS, BLANK, reduction="none")
    assert plain.isnan().tolist() == [False, False, False, True]


def test_memory_beyond_inputs_and_gradients() -> None:
    """The logits would be 160 MB, and as much again for their gradient."""
    torch.manual_seed(4)
    encoder = torch.randn(4, 125, 640, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    predictor = torch.randn(4, 40, 640, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(4005, 640, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(0, 3999, (4, 39), device="cuda")
    lengths = torch.tensor([125] * 4), torch.tensor([39] * 4)

    def run() -> None:
        given = (encoder, predictor, weight, None, targets, *lengths, 3999, DURATIONS)
        torch.autograd.grad(tdt_joint_loss(*given, tile_cells=1024), (encoder, predictor, weight))

    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    gradients = 6 * (encoder.numel() + predictor.numel() + weight.numel())  # in fp32, then in bf16
    assert torch.cuda.max_memory_allocated() - before - gradients < 100 << 20
