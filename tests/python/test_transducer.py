"""octavo.nn.tdt_loss, rnnt_loss and TDTLoss: against transformers' loss and torch's own differentiation."""

from __future__ import annotations

import math

import octavo.nn
import pytest
import torch
from octavo import OctavoError, _transducer
from octavo.nn import TDTLoss, rnnt_loss, tdt_loss
from torch import Tensor

DURATIONS = [0, 1, 2, 3, 4]
BLANK = 5
REDUCTIONS = ["mean_batch", "mean", "mean_volume", "sum", "none"]


def make(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits with durations, targets and both lengths: three clips, one of them as long as the tensors."""
    torch.manual_seed(42)
    logits = torch.randn(3, 8, 5, BLANK + 1 + len(DURATIONS)).to(dtype)
    targets = torch.randint(0, BLANK, (3, 4))
    return logits, targets, torch.tensor([8, 7, 3]), torch.tensor([4, 3, 1])


def split(logits: Tensor) -> tuple[Tensor, Tensor]:
    return logits[..., : BLANK + 1], logits[..., BLANK + 1 :]


def lattice_loss(logits: Tensor, labels: list[int], durations: list[int], sigma: float) -> Tensor:
    """One clip [frames, labels + 1, outputs] in float64, differentiated by torch. No durations: RNN-T."""
    frames, last = logits.shape[0], logits.shape[1] - 1
    tokens = logits[..., : BLANK + 1].double().log_softmax(-1) - sigma
    lasts = logits[..., BLANK + 1 :].double().log_softmax(-1)
    blank = [(d, i) for i, d in enumerate(durations) if d > 0] if durations else [(1, -1)]
    label = [(d, i) for i, d in enumerate(durations)] if durations else [(0, -1)]
    arriving: dict[tuple[int, int], list[Tensor]] = {(0, 0): [torch.zeros((), dtype=torch.float64)]}
    for t in range(frames):
        for u in range(last + 1):
            if (t, u) not in arriving:
                continue
            here = torch.logsumexp(torch.stack(arriving[t, u]), 0)
            for arcs, token, to in ((blank, BLANK, u), (label, labels[u] if u < last else -1, u + 1)):
                for frame, i in arcs:
                    ends = t + frame == frames
                    if token < 0 or t + frame > frames or (ends and (to, token) != (last, BLANK)):
                        continue
                    score = tokens[t, u, token] + (lasts[t, u, i] if i >= 0 else 0.0)
                    arriving.setdefault((t + frame, to), []).append(here + score)
    return -torch.logsumexp(torch.stack(arriving[frames, last]), 0)


def expected_losses(
    logits: Tensor, targets: Tensor, frames: Tensor, labels: Tensor, durations: list[int], sigma: float
) -> Tensor:
    clips = zip(logits, targets, frames.tolist(), labels.tolist(), strict=True)
    return torch.stack(
        [lattice_loss(x[:t, : u + 1], y[:u].tolist(), durations, sigma) for x, y, t, u in clips]
    )


def reduced(losses: Tensor, labels: Tensor, reduction: str) -> Tensor:
    return {
        "mean_batch": losses.mean(),
        "mean": (losses / labels).mean(),
        "mean_volume": losses.sum() / labels.sum(),
        "sum": losses.sum(),
        "none": losses,
    }[reduction]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_loss_and_gradient_equal_torchs(reduction: str) -> None:
    logits, targets, frames, labels = make()
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found = tdt_loss(ours, None, targets, frames, labels, BLANK, DURATIONS, sigma=0.02, reduction=reduction)
    want = reduced(expected_losses(theirs, targets, frames, labels, DURATIONS, 0.02), labels, reduction)
    assert (found.dtype, found.shape) == (torch.float32, want.shape)
    torch.testing.assert_close(found.double(), want, rtol=1e-6, atol=0)
    upstream = torch.arange(1.0, found.numel() + 1).reshape(found.shape)
    found.backward(upstream)
    want.backward(upstream.double())
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-7)
    assert float(ours.grad[2, 3:].abs().max()) == 0.0  # frames that the clip does not have


def test_the_gradient_can_be_taken_again() -> None:
    logits, targets, frames, labels = make()
    loss = tdt_loss(logits.requires_grad_(), None, targets, frames, labels, BLANK, DURATIONS, reduction="sum")
    first, again, twice = (torch.autograd.grad(loss * k, logits, retain_graph=True)[0] for k in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first * 2, twice)


def test_separate_logits_get_their_own_gradients() -> None:
    logits, targets, frames, labels = make()
    whole = logits.clone().requires_grad_()
    tdt_loss(whole, None, targets, frames, labels, BLANK, DURATIONS).backward()
    base = logits.clone().requires_grad_()
    views = split(base)
    tdt_loss(*views, targets.int(), frames.int(), labels.int(), BLANK, DURATIONS).backward()
    copies = [part.clone().requires_grad_() for part in split(logits)]
    tdt_loss(*copies, targets, frames, labels, BLANK, tuple(DURATIONS)).backward()
    assert whole.grad is not None
    assert base.grad is not None
    assert torch.equal(whole.grad, base.grad)
    for copy, part in zip(copies, split(whole.grad), strict=True):
        assert copy.grad is not None
        assert torch.equal(copy.grad, part)


@pytest.mark.parametrize("sigma", [0.0, 0.05])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_drop_in_for_transformers(reduction: str, sigma: float) -> None:
    peer = pytest.importorskip("transformers.loss.loss_tdt", reason="transformers has no TDT loss").tdt_loss
    logits, targets, frames, labels = make()
    results = []
    for function in (peer, tdt_loss):
        parts = [part.clone().requires_grad_() for part in split(logits)]
        loss = function(
            token_logits=parts[0],
            duration_logits=parts[1],
            targets=targets,
            logit_lengths=frames,
            target_lengths=labels,
            blank_token_id=BLANK,
            durations=DURATIONS,
            sigma=sigma,
            reduction=reduction,
        )
        loss.sum().backward()
        results.append((loss.detach(), parts[0].grad, parts[1].grad))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)  # theirs sums in fp32


def test_nemos_arguments() -> None:
    logits, targets, frames, labels = make()
    loss = TDTLoss(blank=BLANK, durations=DURATIONS, reduction="sum", sigma=0.05)
    given = {"acts": logits, "labels": targets, "act_lens": frames, "label_lens": labels}
    want = tdt_loss(logits, None, targets, frames, labels, BLANK, DURATIONS, 0.05, "sum")
    assert torch.equal(loss(**given), want)
    for option in ({"fastemit_lambda": 0.1}, {"clamp": 1.0}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} is .*not supported"):
            TDTLoss(blank=BLANK, durations=DURATIONS, **option)  # type: ignore[arg-type]


def test_rnnt_equals_torchs() -> None:
    logits, targets, frames, labels = make()
    ours = split(logits)[0].clone().requires_grad_()
    theirs = split(logits)[0].clone().requires_grad_()
    found = rnnt_loss(ours, targets, frames, labels, BLANK)
    want = reduced(expected_losses(theirs, targets, frames, labels, [], 0.0), labels, "mean_volume")
    torch.testing.assert_close(found.double(), want, rtol=1e-6, atol=0)
    found.backward()
    want.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-7)


def test_omega_follows_torchs_seed() -> None:
    logits, targets, frames, labels = make()
    logits.requires_grad_()
    tdt = tdt_loss(logits, None, targets, frames, labels, BLANK, DURATIONS, 0.05, "sum")
    rnnt = rnnt_loss(split(logits)[0], targets, frames, labels, BLANK, "sum")

    def draws() -> list[bool]:
        torch.manual_seed(1)
        found = []
        for _ in range(40):
            loss = tdt_loss(logits, None, targets, frames, labels, BLANK, DURATIONS, 0.05, "sum", omega=0.5)
            assert loss.item() in (tdt.item(), rnnt.item())
            logits.grad = None
            loss.backward()  # the same draw again
            assert logits.grad is not None
            found.append(loss.item() == rnnt.item())
            assert bool(split(logits.grad)[1].any()) != found[-1]
        return found

    first = draws()
    assert 5 < sum(first) < 35
    assert draws() == first


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_element_types(dtype: torch.dtype) -> None:
    logits, targets, frames, labels = make(dtype)
    ours, wide = logits.clone().requires_grad_(), logits.float().requires_grad_()
    for given in (ours, wide):
        tdt_loss(given, None, targets, frames, labels, BLANK, DURATIONS).backward()
    assert ours.grad is not None
    assert wide.grad is not None
    assert ours.grad.dtype == dtype
    if dtype == torch.float64:  # is computed in fp32
        assert torch.equal(ours.grad, wide.grad.double())
    else:
        assert torch.equal(ours.grad, wide.grad.to(dtype))


def test_empty_transcripts_and_single_frames_are_finite() -> None:
    logits = torch.zeros(2, 1, 3, 4 + 2, requires_grad=True)
    targets, frames, labels = torch.zeros(2, 2, dtype=torch.int64), torch.tensor([1, 1]), torch.tensor([0, 2])
    for reduction in REDUCTIONS:
        loss = tdt_loss(logits, None, targets, frames, labels, 3, [0, 1], reduction=reduction)
        assert bool(loss.isfinite().all())
        (grad,) = torch.autograd.grad(loss.sum(), logits)
        assert bool(grad.isfinite().all())
    losses = tdt_loss(logits, None, targets, frames, labels, 3, [0, 1], reduction="none")
    torch.testing.assert_close(losses, torch.tensor([math.log(8), 3 * math.log(8)]))
    # Without duration 0 two labels need three frames.
    losses = tdt_loss(logits, None, targets, frames, labels, 3, [1, 2], reduction="none")
    assert losses.tolist() == [pytest.approx(math.log(8)), math.inf]
    (grad,) = torch.autograd.grad(losses.sum(), logits)
    assert [bool(clip.any()) for clip in grad] == [True, False]


def test_memory_of_any_order() -> None:
    logits, targets, frames, labels = make()
    want = tdt_loss(logits, None, targets, frames, labels, BLANK, DURATIONS)
    for other in (
        logits.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
        logits.transpose(0, 1).contiguous().transpose(0, 1),
    ):
        given = other.detach().requires_grad_()
        loss = tdt_loss(given, None, targets.t().contiguous().t(), frames, labels, BLANK, DURATIONS)
        assert torch.equal(loss, want)
        loss.backward()
    expanded = tdt_loss(
        logits[:1, :1, :1].expand(3, 8, 5, -1), None, targets, frames, labels, BLANK, DURATIONS
    )
    dense = logits[:1, :1, :1].expand(3, 8, 5, -1).contiguous()
    assert torch.equal(expanded, tdt_loss(dense, None, targets, frames, labels, BLANK, DURATIONS))
    # Labels of fewer columns than the logits have positions.
    few = tdt_loss(logits, None, targets[:, :2], frames, labels.clamp(max=2), BLANK, DURATIONS)
    assert torch.equal(few, tdt_loss(logits, None, targets, frames, labels.clamp(max=2), BLANK, DURATIONS))


def test_wrong_arguments_are_named() -> None:
    logits, targets, frames, labels = make()

    def call(**changed: object) -> None:
        arguments = {
            "token_logits": logits,
            "duration_logits": None,
            "targets": targets,
            "logit_lengths": frames,
            "target_lengths": labels,
            "blank_token_id": BLANK,
            "durations": DURATIONS,
        }
        tdt_loss(**{**arguments, **changed})  # type: ignore[arg-type]

    for error, message, changed in (
        (ValueError, "logits are .*expected .batch", {"token_logits": logits[0]}),
        (ValueError, "logits are torch.int64", {"token_logits": logits.long()}),
        (ValueError, "duration_logits are .*expected", {"duration_logits": logits}),
        (
            ValueError,
            "tdt_loss: the device of duration_logits is meta, expected cpu, that of token_logits",
            {"duration_logits": torch.empty(*logits.shape[:3], len(DURATIONS), device="meta")},
        ),
        (ValueError, "outputs, expected more than", {"durations": list(range(12))}),
        (ValueError, "durations is empty", {"durations": []}),
        (ValueError, "targets are .*expected .3, labels", {"targets": targets[0]}),
        (ValueError, "targets are torch.float32, expected integers", {"targets": targets.float()}),
        (ValueError, "logit_lengths are", {"logit_lengths": frames[:2]}),
        (ValueError, "reduction: got 'median'", {"reduction": "median"}),
        (
            OctavoError,
            r"targets\[0\]\[1\]: got 5, expected",
            {"targets": targets.index_fill(1, torch.tensor([1]), 5)},
        ),
        (OctavoError, r"target_lengths\[1\]: got 5", {"target_lengths": torch.tensor([4, 5, 1])}),
        (OctavoError, r"logit_lengths\[2\]: got 9", {"logit_lengths": torch.tensor([8, 7, 9])}),
        (OctavoError, r"targets\[0\]\[2\]: got -1", {"targets": targets[:, :2]}),
        (OctavoError, "sigma: got nan", {"sigma": math.nan}),
    ):
        with pytest.raises(error, match=message):
            call(**changed)


def test_opcheck() -> None:
    logits, targets, frames, labels = make()
    seed = torch.tensor(3)
    whole = (
        logits.requires_grad_(),
        None,
        targets,
        frames,
        labels,
        seed,
        BLANK,
        DURATIONS,
        0.02,
        0.0,
        "mean",
    )
    torch.library.opcheck(_transducer.transducer_loss, whole)
    parts = [part.detach().requires_grad_() for part in split(logits)]
    torch.library.opcheck(_transducer.transducer_loss, (*parts, *whole[2:10], "none"))


def test_compiled() -> None:
    logits, targets, frames, labels = make()

    def run(x: Tensor) -> Tensor:
        return octavo.nn.tdt_loss(x * 2, None, targets, frames, labels, BLANK, DURATIONS) + 1

    found = []
    for function in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        given = logits.clone().requires_grad_()
        loss = function(given)
        loss.backward()
        assert given.grad is not None
        found.append((loss.detach(), given.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
