"""Tests the runs of benchmarks/convergence: runs are paired, a bad codec is caught, a stopped call resumes.

The model is tiny and the text synthetic: these tests do not show that a format trains well.
"""

from __future__ import annotations

import json
import math
import pathlib
import random
import xml.etree.ElementTree as ElementTree

import arms
import char_gpt
import gpt
import lanes
import pytest
import records
import run_inputs
import schedule
import shadow
import torch

CPU = torch.device("cpu")
TINY = ["--layers", "1", "--heads", "2", "--width", "32", "--block", "16", "--batch", "4", "--device", "cpu"]
SHORT = [*TINY, "--steps", "20", "--warm-up", "4", "--eval-every", "10"]


def text_of(length: int = 4000) -> bytes:
    """Returns words of a small vocabulary in random order."""
    source = random.Random(7)
    words = ["".join(source.choices("abcdefghij", k=source.randint(2, 6))) for _ in range(20)]
    return " ".join(source.choice(words) for _ in range(length // 4))[:length].encode()


def tiny(**changes: object) -> tuple[run_inputs.Settings, run_inputs.Corpus]:
    tokens, vocabulary, crc = run_inputs.read_text(text_of())
    base = {"layers": 1, "heads": 2, "width": 32, "block": 16, "batch": 4, "steps": 12, "warm_up": 3}
    settings = run_inputs.Settings(
        crc, vocabulary, **{**base, "eval_every": 5, "precision": "fp32", **changes}
    )
    return settings, run_inputs.Corpus(settings, tokens, CPU)


def trained(arm: str, seed: int = 3, beta2: float = 0.99, lane: lanes.Lane | None = None) -> lanes.Lane:
    settings, corpus = tiny()
    lane = lane or lanes.Lane(settings, corpus, arm, beta2, CPU)
    lane.load(seed, run_inputs.SeedInputs.of(settings, seed, len(corpus.train)))
    assert schedule.train([lane], settings, schedule.Deadline(None))
    return lane


# --- Pairs --------------------------------------------------------------------------------------------------


def test_a_seed_decides_everything_that_is_random() -> None:
    settings, corpus = tiny()
    one, same, other = (run_inputs.SeedInputs.of(settings, seed, len(corpus.train)) for seed in (1, 1, 2))
    assert one.marks == same.marks
    assert one.marks["init"] != other.marks["init"]
    assert one.marks["data"] != other.marks["data"]
    for a, b in zip(one.parameters, same.parameters, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.parameters[0], other.parameters[0])
    assert not torch.equal(one.offsets, other.offsets)
    assert not torch.equal(one.picks, other.picks)
    assert int(one.offsets.max()) + settings.block < len(corpus.train)


def test_arms_of_a_seed_see_the_same_weights_batches_and_masks() -> None:
    """The first loss depends on all of them; a first step uses moments that are not yet encoded."""
    settings, corpus = tiny()
    plan = run_inputs.SeedInputs.of(settings, 5, len(corpus.train))
    first, after = [], {}
    for arm in arms.DEFAULT_ARMS:
        lane = lanes.Lane(settings, corpus, arm, 0.999, CPU)
        lane.load(5, plan)
        lane.advance()
        first.append(lane.losses[0].item())
        after[arm] = [p.detach().clone() for p in lane.parameters]
    assert first == [first[0]] * len(first)
    for arm in ("8bit", "fp8", "4bit", arms.BAD):
        for mine, reference in zip(after[arm], after[arms.REFERENCE], strict=True):
            assert torch.equal(mine, reference)


@pytest.mark.parametrize("arm", ["torch", "4bit", "fp4", arms.BAD])
def test_a_lane_that_is_loaded_again_starts_over(arm: str) -> None:
    lane = trained(arm)
    fresh = [p.detach().clone() for p in lane.parameters], lane.losses.clone(), lane.curve.clone()
    trained(arm, seed=4, lane=lane)
    assert not torch.equal(lane.losses, fresh[1])
    trained(arm, seed=3, lane=lane)
    assert torch.equal(lane.losses, fresh[1])
    assert torch.equal(lane.curve, fresh[2])
    assert all(map(torch.equal, lane.parameters, fresh[0]))


def test_everything_is_quantized() -> None:
    count = sum(p.numel() for p in trained("fp32").parameters)
    assert trained("fp32").arm.state_bytes() == 8 * count
    assert trained("8bit").arm.state_bytes() < 2.2 * count
    assert trained("4bit").arm.state_bytes() < 1.3 * count


# --- The model and its inputs -------------------------------------------------------------------------------


def test_a_character_changes_only_the_positions_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, corpus = tiny()
    losses = []
    plain = torch.nn.functional.cross_entropy

    def keep(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses.append(plain(logits, targets, reduction="none"))
        return losses[-1].mean()

    monkeypatch.setattr(gpt.F, "cross_entropy", keep)
    window = corpus.validation[:1].clone()
    for _ in range(2):
        gpt.loss(settings.shape, gpt.initial(settings.shape, 0), window, None)
        window[0, 8] = (window[0, 8] + 1) % settings.vocabulary
    # Position 7 predicts character 8, and position 8 reads it.
    same = (losses[0] == losses[1]).tolist()
    assert same[:7] == [True] * 7
    assert not any(same[7:])


def test_masks_drop_and_keep_the_mean() -> None:
    pool = tiny(dropout=0.25)[1].pool
    assert pool is not None
    assert pool.unique().tolist() == pytest.approx([0.0, 4 / 3], rel=2**-8)  # made in bf16
    assert pool.mean().item() == pytest.approx(1.0, abs=0.01)
    assert tiny(dropout=0.0)[1].pool is None


def test_validation_windows_cover_the_end_of_the_text_and_nothing_else() -> None:
    settings, corpus = tiny()
    tokens, _, _ = run_inputs.read_text(text_of())
    rest = tokens[len(corpus.train) :]
    assert torch.equal(torch.cat([corpus.train, rest]), tokens)
    assert len(corpus.validation) == (len(rest) - 1) // settings.block
    joined = corpus.validation[:, :-1].flatten()
    assert torch.equal(joined, rest[: len(joined)])
    assert torch.equal(corpus.validation[:-1, -1], corpus.validation[1:, 0])


def test_a_text_that_is_too_short_is_an_error() -> None:
    tokens, vocabulary, crc = run_inputs.read_text(text_of(100))
    settings = run_inputs.Settings(crc, vocabulary, block=16, width=32)
    with pytest.raises(ValueError, match="the text has 100 characters, of which 10 are for validation"):
        run_inputs.Corpus(settings, tokens, CPU)


def test_the_learning_rate_rises_and_falls_to_a_tenth() -> None:
    rates = tiny(steps=100, warm_up=10, lr=1e-3, lr_end=0.1)[0].schedule()
    assert rates[0].item() == pytest.approx(1e-4)
    assert rates.argmax().item() in (9, 10)
    assert rates.max().item() == pytest.approx(1e-3)
    assert rates[-1].item() == pytest.approx(1e-4)
    assert (rates[10:].diff() < 0).all()


# --- The codec that is known to be bad ----------------------------------------------------------------------


def test_the_bad_codec_loses_small_second_moments() -> None:
    codec = arms.ZeroCodec(CPU)
    small = 0.00325 / 2
    first = torch.zeros(128)
    first[:5] = torch.tensor([8.0, 8.0 * small * 0.99, 8.0 * small * 1.01, 8.0 * 0.5, 8.0 * 0.9])
    v = torch.cat([first, torch.zeros(128), torch.tensor([1e-20, 1e-23])])  # the last block is not full
    codec.round_trip_([v])
    expected = [8.0, 0.0, 8.0 * 0.00325, 8.0 * 0.49375, 8.0 * 0.94375]
    assert v[:5].tolist() == pytest.approx(expected)
    assert v[5:256].count_nonzero() == 0
    assert v[256:].tolist() == [pytest.approx(1e-20), 0.0]
    again = v.clone()
    codec.round_trip_([again])
    assert torch.equal(again, v)


def largest_step(arm: str) -> float:
    """Returns the largest change of the sixth step in learning rates, for constant gradients; Adam's is 1."""
    parameter = torch.zeros(2, 64, requires_grad=True)
    grad = torch.logspace(-1.7, 0, 128).view(2, 64)
    optimizer = arms.Arm(arm, [parameter], beta2=0.999, weight_decay=0.0, lr=torch.tensor(1e-3), graph=False)
    before = parameter.detach().clone()
    for _ in range(6):
        before = parameter.detach().clone()
        parameter.grad = grad.clone()
        optimizer.step()
    return float((parameter.detach() - before).abs().max()) / 1e-3


def test_only_the_bad_arm_forgets_small_second_moments() -> None:
    """A v that is lost at each step is g^2 (1 - beta2) at the next step, a sixth of the correct value."""
    assert largest_step(arms.REFERENCE) == pytest.approx(1.0, rel=1e-3)
    assert largest_step("8bit") < 1.2
    assert largest_step("4bit") < 1.2
    assert largest_step(arms.BAD) == pytest.approx(math.sqrt(6), rel=0.01)


# --- Graphs -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_on_streams_train_as_the_cpu_does() -> None:
    """Trains all arms in parallel, twice; a race or a stale address shows within 12 steps."""
    settings, corpus = tiny()
    tokens, _, _ = run_inputs.read_text(text_of())
    device = torch.device("cuda", 0)
    there = run_inputs.Corpus(settings, tokens, device)
    side_by_side = [lanes.Lane(settings, there, arm, 0.999, device) for arm in arms.DEFAULT_ARMS]
    for seed in (3, 4):
        plan = run_inputs.SeedInputs.of(settings, seed, len(corpus.train))
        for lane in side_by_side:
            lane.load(seed, plan)
        assert schedule.train(side_by_side, settings, schedule.Deadline(None))
        for lane in side_by_side:
            found, expected = lane.result(), trained(lane.name, seed, 0.999).result()
            # The last bit decides whether the bad arm's v falls to zero, so only its first point is compared.
            points = 1 if lane.name == arms.BAD else len(expected["train"])
            for curve in ("train", "validation"):
                mine, its = found[curve][:points], expected[curve][:points]
                assert mine == pytest.approx(its, abs=2e-3), (lane.name, seed, curve)


# --- Runs --------------------------------------------------------------------------------------------------


def test_tasks_are_ordered_by_seed_and_a_round_uses_each_lane_once() -> None:
    todo = schedule.tasks(["fp32", "8bit", arms.BAD], [0.99, 0.999], seeds=3, bad_seeds=1)
    assert [task.seed for task in todo] == [0] * 6 + [1] * 4 + [2] * 4
    assert len({task.key for task in todo}) == len(todo)
    for jobs in (1, 4, 100):
        found = list(schedule.rounds(todo, jobs))
        assert [task for chosen in found for task in chosen] == todo
        assert all(len({task.lane for task in chosen}) == len(chosen) <= jobs for chosen in found)


@pytest.fixture
def text(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "text.txt"
    path.write_bytes(text_of())
    return str(path)


def test_a_stopped_run_resumes(tmp_path: pathlib.Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "runs.jsonl"
    call = [
        "run",
        "--text",
        text,
        "--results",
        str(results),
        "--arms",
        "fp32,4bit",
        "--beta2",
        "0.99",
        *SHORT,
    ]
    assert char_gpt.main([*call, "--seeds", "2", "--time-limit", "0"]) == 1
    assert not results.exists()
    assert char_gpt.main([*call, "--seeds", "1"]) == 0
    first = results.read_bytes()
    assert char_gpt.main([*call, "--seeds", "1"]) == 0
    assert results.read_bytes() == first
    capsys.readouterr()
    assert char_gpt.main([*call, "--seeds", "2", "--jobs", "1"]) == 0
    assert "2 of 4 runs are done" in capsys.readouterr().err
    assert results.read_bytes().startswith(first)
    known = records.load(results)
    keys = [("fp32", 0, 0.99), ("4bit", 0, 0.99), ("fp32", 1, 0.99), ("4bit", 1, 0.99)]
    assert [records.key_of(r) for r in known] == keys
    assert known[0]["init"] == known[1]["init"] != known[2]["init"] == known[3]["init"]
    assert known[0]["steps"] == [10, 20]
    assert known[0]["loss"] == known[0]["validation"][-1] != known[1]["loss"]
    with pytest.raises(ValueError, match=r"holds runs with lr=0\.001, and this one has lr=0\.002"):
        char_gpt.main([*call, "--lr", "0.002"])


def test_a_deadline_within_a_run_leaves_no_incomplete_record(tmp_path: pathlib.Path) -> None:
    settings, _ = tiny()
    tokens, _, _ = run_inputs.read_text(text_of())

    class Late(schedule.Deadline):
        calls = 0

        def allows(self, seconds: float = 0.0) -> bool:
            self.calls += 1
            return self.calls < 2

    todo = schedule.tasks(["fp32"], [0.99], 2, 0)
    late, results = Late(None), tmp_path / "runs.jsonl"
    assert schedule.Runner(settings, tokens, CPU).run(todo, 1, late, results) == 0
    assert late.calls == 2
    assert not results.exists()


def test_the_bad_arm_is_caught_and_the_null_arm_is_not(
    tmp_path: pathlib.Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results, plot = tmp_path / "runs.jsonl", tmp_path / "plot.svg"
    call = ["run", "--text", text, "--results", str(results), "--arms", "fp32,torch,bad", "--beta2", "0.999"]
    sizes = [
        *("--layers", "2", "--heads", "2", "--width", "64", "--block", "32", "--batch", "8"),
        *("--lr", "0.01"),
    ]
    sizes += ["--steps", "40", "--warm-up", "5", "--eval-every", "20", "--seeds", "3", "--device", "cpu"]
    assert char_gpt.main([*call, *sizes, "--svg", str(plot), "--json"]) == 0
    rows = {row["arm"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["torch"]["verdict"] == "equivalent"
    assert rows["torch"]["runs"] == rows[arms.BAD]["runs"] == 3
    assert rows[arms.BAD]["caught"] is True
    assert rows[arms.BAD]["verdict"] in ("worse", "diverged")
    assert char_gpt.main(["report", "--results", str(results)]) == 0
    assert "(caught)" in capsys.readouterr().out
    drawing = ElementTree.fromstring(plot.read_text())
    assert len(drawing.findall("{*}polyline")) == 3 + 2


# --- Updates side by side -----------------------------------------------------------------------------------


def test_shadow_finds_fp32_equal_to_itself(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    text = tmp_path / "text.txt"
    text.write_bytes(text_of())
    small = ["--layers", "1", "--width", "32", "--block", "16", "--batch", "4", "--steps", "5"]
    monkeypatch.setattr("sys.argv", ["shadow.py", "--text", str(text), "--states", "fp32,4bit", *small])
    assert shadow.main() == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "| fp32" in line]
    assert len(rows) == 3
    assert all(row[3:5] == ["1.000", "1.0000"] for row in rows)
