"""Tests the pages at phone and desktop widths in headless Chromium: no box extends beyond the page's
width, no word is broken, tiles and bars hold their texts, and the colors of owners are distinguishable.

OCTAVO_BIN (or OCTAVO_COMMAND) names the binary. OCTAVO_PLAN_PAGE_WRITER names the program that makes a
plan's page from JSON. browser.py describes when the tests are skipped.
"""

import itertools
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import wave

import pytest
from browser import measured
from fake_runs import PARAMS, realistic, write_run

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = (
    os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
)
MB = 10**6
DARK = "--blink-settings=preferredColorScheme=0"


def octavo(*words, cwd):
    done = subprocess.run([BINARY, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=120)
    if "unknown subcommand" in done.stderr:
        pytest.skip("this octavo is built without the trainer")
    return done


def report(folder):
    """Writes a report of a speech run, which has one more tile, and examples."""
    records = realistic(steps=400)
    records[0]["unit"] = "clips"
    for each in records:
        if each["kind"] == "eval":
            each.update(wer=0.1138, better={"loss": "lower", "wer": "lower"})
            each["examples"] = [{"name": "clip 1", "reference": "the cat sat", "hypothesis": "the hat sat"}]
    page = folder / "report.html"
    done = octavo("report", write_run(folder / "run", records), "--output", page, cwd=folder)
    assert done.returncode == 0, done.stderr
    return page


def comparison(folder):
    runs = []
    for seed, (name, size) in enumerate([("fp32", 8), ("8bit", 2.03), ("4bit", 1.06)]):
        records = realistic(seed=seed, steps=400, optimizer=f"AdamW {name}", state_bytes=size * PARAMS)
        runs.append(write_run(folder / name, records))
    page = folder / "report.html"
    done = octavo("report", *runs, "--output", page, cwd=folder)
    assert done.returncode == 0, done.stderr
    return page


def check(folder):
    tone = [int(8000 * math.sin(n / 7)) for n in range(16000)]
    entries = [{"audio_filepath": "none.wav", "duration": 1.0, "text": "a red boat"}]
    for i in range(4):
        with wave.open(str(folder / f"{i}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(struct.pack("<16000h", *tone))
        entries.append({"audio_filepath": f"{i}.wav", "duration": 1.0, "text": "a blue boat"})
    (folder / "all.jsonl").write_text("".join(json.dumps(each) + "\n" for each in entries))
    done = octavo("data", "check", "all.jsonl", cwd=folder)
    page = folder / "all.check.html"
    if not page.exists():
        pytest.skip("this octavo is built without recordings: " + done.stderr)
    return page


def plan(folder):
    """Writes a plan's page with parts of 1% to 40%, and the longest possible number in each tile."""
    sizes = {
        **{"weights": 1210, "gradients": 1210, "optimizer states": 1280, "master bits": 605},
        **{"activations": 2900, "workspace": 17, "communication": 50, "rounding": 40},
        **{"fragmentation": 210, "evaluation": 90, "CUDA context": 472},
    }
    rows = [[name, size * MB] for name, size in sizes.items()]
    total = sum(size for _, size in rows)
    name = "NVIDIA GeForce RTX 3060 12 GB with 8 GB"
    point = {
        **{"rows": 32, "length": 512, "checkpointing": True, "weights": 1210 * MB, "gradients": 1210 * MB},
        **{"activations": 2900 * MB, "workspace": 17 * MB, "rounding": 40 * MB, "fragmentation": 210 * MB},
        **{"evaluation": 90 * MB, "step_seconds": 0.1745, "units": 16384},
    }
    gpu = {"key": "8gb", "name": name, "memory": 8420 * MB, "context": 472 * MB}
    data = {
        **{"title": "run.yaml on " + name, "config": "run.yaml", "overrides": [], "unit": "tokens"},
        **{"memory_rows": rows, "total": total, "allocated": total, "reserved": total},
        **{"step_seconds": 0.1745, "units_per_second": 93900, "bound": "memory bandwidth"},
        "lines": ["it fits"],
        "kernels": [["aten::convolution_backward", 0.05], ["aten::mul", 0.02], ["optimizer step", 0.01]],
        "gpus": [{**gpu, "bandwidth": 36e10, "bf16": 25e12}],
        "now": {
            **{"rows": 32, "length": 512, "checkpointing": True, "state": "8bit", "gpu": "8gb"},
            **{"num_gpus": 1, "zero": "none"},
        },
        "lengths_known": True,
        "states": [{"name": "8bit", "states": 1280 * MB, "master": 605 * MB}],
        "points": [point, {**point, "rows": 64, "activations": 5800 * MB, "step_seconds": 0.34}],
    }
    writer = os.environ.get("OCTAVO_PLAN_PAGE_WRITER") or pytest.skip("OCTAVO_PLAN_PAGE_WRITER is not set")
    (folder / "plan.json").write_text(json.dumps(data), encoding="utf-8")
    page = folder / "plan.html"
    subprocess.run([writer, folder / "plan.json", page], check=True, timeout=60)
    return page


@pytest.mark.parametrize("width", [390, 760, 1280])
@pytest.mark.parametrize("make", [report, comparison, check, plan], ids=lambda make: make.__name__)
def test_texts_stay_where_they_belong(tmp_path, make, width):
    seen = measured(make(tmp_path), tmp_path, width)
    assert seen["width"] == width
    assert seen["page"] <= width
    assert seen["beyond"] == []
    assert seen["broken"] == []
    assert seen["tiles"] == []
    assert seen["labels"] == []
    if width == 1280 and make in (report, plan):
        assert seen["shown"] > 0


def channels(colour):
    """Returns red, green and blue from 0 to 255, from rgb(…) or color(srgb …)."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", colour)][:3]
    return [255 * number for number in numbers] if "srgb" in colour else numbers


@pytest.mark.parametrize("flags", [[], [DARK]], ids=["light", "dark"])
@pytest.mark.parametrize(("make", "count"), [(report, 6), (plan, 11)], ids=["report", "plan"])
def test_owners_have_colours_that_differ(tmp_path, make, count, flags):
    colours = measured(make(tmp_path), tmp_path, 1280, *flags)["colours"]
    assert len(colours) == count
    for (one, first), (other, second) in itertools.combinations(colours.items(), 2):
        apart = math.dist(channels(first), channels(second))
        assert apart > 45, f"{one} and {other}: {first}, {second}"
