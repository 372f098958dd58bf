"""Tests a plan's page in headless Chromium: its controls against sums computed by hand, and its requests.

OCTAVO_PLAN_PAGE_WRITER is the program of tests/train/plan_page_writer.cc, which makes a page from JSON.
Most tests need nothing else, and are skipped without it. OCTAVO_BIN (or OCTAVO_COMMAND) names the octavo
of the other tests. browser.py describes when tests are skipped because there is no browser.
"""

import base64
import copy
import json
import os
import pathlib
import re
import subprocess

import pytest
from browser import HOSTILE, Browsed, Elements, with_script

GB = 10**9
ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = (
    os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
)


def point(rows, length, checkpointing, activations, seconds, fragmentation=1 * GB):
    return {
        **{"rows": rows, "length": length, "checkpointing": checkpointing, "weights": 2 * GB},
        **{"gradients": 4 * GB, "activations": activations, "workspace": rows * GB // 16},
        **{"rounding": 0, "fragmentation": fragmentation, "step_seconds": seconds, "units": rows * length},
    }


# These numbers are easy to add. `now` is 2 + 4 + 8 + 2 + 20 + 2 + 1 + 1 = 40 GB.
PLAN = {
    "title": "run.yaml on Big",
    "config": "run.yaml",
    "overrides": [],
    "unit": "tokens",
    "memory_rows": [
        *(["weights", 2 * GB], ["gradients", 4 * GB], ["optimizer states", 8 * GB], ["master bits", 2 * GB]),
        *(["activations", 20 * GB], ["workspace", 2 * GB], ["communication", 0], ["rounding", 0]),
        *(["fragmentation", 1 * GB], ["CUDA context", 1 * GB]),
    ],
    **{"total": 40 * GB, "allocated": 38 * GB, "reserved": 39 * GB},
    **{"step_seconds": 0.4, "units_per_second": 40960, "bound": "memory bandwidth"},
    "lines": ["it fits"],
    "kernels": [["aten::bmm", 0.3], ["aten::mul", 0.1]],
    "gpus": [
        {"key": "b", "name": "Big", "memory": 80 * GB, "context": GB, "bandwidth": 4e12, "bf16": 800e12},
        {
            "key": "s",
            "name": "Small",
            "memory": 24 * GB,
            "context": GB // 2,
            "bandwidth": 1e12,
            "bf16": 400e12,
        },
    ],
    "now": {
        **{"rows": 32, "length": 512, "checkpointing": True, "state": "fp32", "gpu": "b"},
        **{"num_gpus": 1, "zero": "none"},
    },
    "lengths_known": True,
    "states": [
        {"name": "fp32", "states": 8 * GB, "master": 2 * GB},
        {"name": "8bit", "states": 2 * GB, "master": 1 * GB},
    ],
    "points": [
        point(32, 512, True, 20 * GB, 0.4),
        point(16, 512, True, 12 * GB, 0.25),
        point(64, 512, True, 40 * GB, 0.8, fragmentation=3 * GB),
        point(32, 512, False, 60 * GB, 0.3),
        point(32, 1024, True, 40 * GB, 0.8),
    ],
}

# Changes controls one after another and records the page's texts. A select's option is identified by its
# text.
DRIVER = """
const changes = CHANGES, out = [];
const noted = () => ({
  ...Object.fromEntries(["verdict", "most", "step", "rate"]
    .map((id) => [id, (document.getElementById(id) || {}).textContent])),
  notes: document.querySelector("#what-if > p").textContent,
  note: document.querySelector("#verdict + .note").textContent,
  gpu: document.getElementById("gpu").selectedOptions[0].text,
  bar: [...document.querySelectorAll("#what-if .bar span")].map((each) => parseFloat(each.style.width)),
  limit: [...document.querySelectorAll("#what-if .bar .limit")].map((each) => parseFloat(each.style.left)),
  rows: Object.fromEntries([...document.querySelectorAll("#what-if tbody tr")]
    .map((row) => [row.cells[0].textContent, row.cells[2].textContent])),
});
for (const change of changes) {
  for (const [id, value] of Object.entries(change)) {
    const control = document.getElementById(id);
    const option = [...(control.options || [])].find((each) => each.text.startsWith(value));
    control.value = option ? option.value : value;
    control.dispatchEvent(new Event("input", { bubbles: true }));
  }
  out.push(noted());
}
document.querySelector("#what-if button").click();
setTimeout(() => {
  out.push(noted());
  const text = document.createElement("pre");
  text.id = "noted";
  text.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(out))));
  document.body.append(text);
}, 100);
"""


def page_of(plan, folder):
    writer = os.environ.get("OCTAVO_PLAN_PAGE_WRITER") or pytest.skip("OCTAVO_PLAN_PAGE_WRITER is not set")
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    page = folder / "plan.html"
    subprocess.run([writer, folder / "plan.json", page], check=True, timeout=60)
    return page


def moved(plan, folder, *changes):
    """Returns the page's texts after each change, and after the button that undoes all changes."""
    return driven(page_of(plan, folder), folder, *changes)


def driven(page, folder, *changes):
    page.write_text(with_script(page, DRIVER.replace("CHANGES", json.dumps(changes))), encoding="utf-8")
    seen = Browsed(page, folder)
    assert seen.console == []
    return json.loads(base64.b64decode(re.search(r'<pre id="noted">([^<]*)<', seen.dom).group(1)))


def test_the_controls_begin_and_end_with_the_plan(tmp_path):
    first, other, last = moved(
        PLAN, tmp_path, {}, {"rows": "5", "gpu": "Small", "state": "8bit", "num_gpus": "8"}
    )
    assert first == last != other
    assert first["verdict"] == "fits"
    assert first["note"] == "40.0 GB of 80.0 GB, 40.0 GB are left"
    assert (first["step"], first["rate"], first["notes"]) == ("400 ms", "41.0k tokens/s", "")
    expected = {name: f"{size / GB:.2f} GB" for name, size in PLAN["memory_rows"] if size}
    assert first["rows"] == {**expected, "activations": "20.0 GB", "in all": "40.0 GB"}
    assert sum(first["bar"]) == pytest.approx(50, abs=0.01)
    assert first["limit"] == []


def test_rows_lie_on_lines_through_the_nearest_plans(tmp_path):
    between, beyond, below, slid, odd, _ = moved(
        PLAN, tmp_path, {"rows": "48"}, {"rows": "96"}, {"rows": "1"}, {"rows-range": "24"}, {"rows": "-3.5"}
    )
    # 48 is halfway from 32 to 64. The workspace is that of 32, the first of two equally near points.
    assert between["rows"]["activations"] == "30.0 GB"
    assert between["rows"]["fragmentation"] == "2.00 GB"
    assert between["rows"]["workspace"] == "2.00 GB"
    assert (between["step"], between["rate"]) == ("600 ms", "41.0k tokens/s")
    # 60 GB, 5 GB and 1.2 s extrapolate the same line. 2 + 4 + 8 + 2 + 60 + 4 + 5 + 1 = 86.
    assert beyond["rows"]["in all"] == "86.0 GB"
    assert (beyond["verdict"], beyond["step"]) == ("does not fit", "1.2 s")
    assert beyond["note"] == "86.0 GB of 80.0 GB, 6.00 GB too much"
    assert beyond["limit"] == [pytest.approx(100 * 80 / 86, abs=0.01)]
    assert "16 to 64 rows" in beyond["notes"]
    assert below["rows"]["activations"] == "4.50 GB"
    assert below["rate"] == "4.68k tokens/s"  # 512 / (0.25 - 15 * 0.15 / 16)
    assert slid["rows"]["activations"] == "16.0 GB"
    assert odd == below


def test_what_evaluations_add_lies_between_those_of_plans(tmp_path):
    plan = copy.deepcopy(PLAN)
    plan["memory_rows"].append(["evaluation", 1 * GB])
    plan["total"] += 1 * GB
    for each in plan["points"]:
        each["evaluation"] = {16: 5 * GB, 32: 1 * GB, 64: 0}[each["rows"]]
    now, between, beyond, _ = moved(plan, tmp_path, {}, {"rows": "24"}, {"rows": "96"})
    assert (now["rows"]["evaluation"], now["rows"]["in all"]) == ("1.00 GB", "41.0 GB")
    assert between["rows"]["evaluation"] == "3.00 GB"
    assert beyond["rows"]["in all"] == "86.0 GB"  # there, steps need more memory than evaluations


def test_the_largest_number_of_rows_is_the_last_that_fits(tmp_path):
    most, full, at, over, small, _ = moved(
        *(PLAN, tmp_path, {}, {"checkpointing": "off", "rows": "32"}, {"checkpointing": "on", "rows": "87"}),
        *({"rows": "88"}, {"gpu": "Small", "rows": "1"}),
    )
    # Beyond 64 rows: 21 GB, plus activations of 40 + 0.625 (r - 64) and fragmentation of 3 + 0.0625 (r - 64).
    assert most["most"] == at["most"] == over["most"] == "up to 87"
    assert (at["verdict"], over["verdict"]) == ("fits", "does not fit")
    # Without checkpointing there is a single point: 61 GB grow with the rows, 19 GB are fixed, and one more
    # row does not fit.
    assert (full["verdict"], full["most"], full["limit"]) == ("fits", "up to 32", [])
    # 18.5 GB plus activations of 4 + 0.5 r.
    assert (small["verdict"], small["most"]) == ("fits", "up to 3")


def test_formats_ranks_and_gpus_change_what_they_own(tmp_path):
    low, shared, both, alone, other, _ = moved(
        PLAN,
        tmp_path,
        {"state": "8bit"},
        {"state": "fp32", "num_gpus": "4", "zero": "ZeRO-1"},
        {"zero": "ZeRO-2"},
        {"num_gpus": "1"},
        {"zero": "none", "gpu": "Small"},
    )
    assert (low["rows"]["optimizer states"], low["rows"]["master bits"]) == ("2.00 GB", "1.00 GB")
    assert (shared["rows"]["optimizer states"], shared["rows"]["master bits"]) == ("2.00 GB", "500 MB")
    assert shared["rows"]["gradients"] == "4.00 GB"
    assert shared["rate"] == "164k tokens/s"
    assert "communication" in shared["notes"]
    assert both["rows"]["gradients"] == "1.00 GB"
    assert alone["rows"]["gradients"] == "4.00 GB"
    assert other["rows"]["CUDA context"] == "500 MB"
    assert (other["verdict"], other["step"]) == ("does not fit", "1.6 s")  # a quarter of the bandwidth
    assert "rough" in other["notes"]


def test_lengths_and_checkpointing_are_those_of_plans(tmp_path):
    long, missing, off, _ = moved(
        PLAN, tmp_path, {"length": "1,024"}, {"checkpointing": "off"}, {"length": "512"}
    )
    assert (long["rows"]["activations"], long["rate"]) == ("40.0 GB", "41.0k tokens/s")
    assert missing["verdict"] == "not planned"
    assert missing["rows"] == {}
    assert (off["rows"]["activations"], off["step"]) == ("60.0 GB", "300 ms")


def test_a_plan_of_one_point_has_controls(tmp_path):
    plan = copy.deepcopy(PLAN)
    plan["points"] = plan["points"][:1]
    plan["states"], plan["gpus"] = plan["states"][:1], plan["gpus"][:1]
    plan["lengths_known"] = False
    del plan["now"]["length"], plan["points"][0]["length"]
    half, _ = moved(plan, tmp_path, {"rows": "16"})
    assert (half["rows"]["activations"], half["step"]) == ("10.0 GB", "200 ms")


@pytest.mark.parametrize("flags", [[], ["--blink-settings=preferredColorScheme=0"]], ids=["light", "dark"])
def test_the_page_runs_under_its_own_policy(tmp_path, flags):
    seen = Browsed(page_of(PLAN, tmp_path), tmp_path, *flags)
    assert seen.console == []
    assert seen.title == "run.yaml on Big · Octavo"
    assert '<dd class="good" id="verdict">fits</dd>' in seen.dom


def shown(plan, folder):
    seen = Browsed(page_of(plan, folder), folder)
    assert seen.console == []
    return seen.elements


def test_the_page_has_every_number_of_the_plan(tmp_path):
    seen = shown(
        {**PLAN, "overrides": ["training.seed=7"], "lines": ["memory:", "  weights   2 GB"]}, tmp_path
    )
    for text in (
        *(
            "run.yaml on Big fits",
            "run.yaml training.seed=7",
            "bound by memory bandwidth",
            "memory: weights 2 GB",
        ),
        *("Memory of a GPU 40.0 GB 40.0 GB of 80.0 GB are left"),
        *("Time of a step 400 ms", "41.0k tokens/s"),
        "Of it torch allocates 38.0 GB at the peak and reserves 39.0 GB",
    ):
        assert text in seen.text
    for row in (
        ["weights", "2.00 GB 2,000,000,000", "5.00%"],
        ["in all", "40.0 GB 40,000,000,000", "100%"],
        ["aten::bmm", "300 ms", "75.0%", ""],
        ["32", "1,024", "yes", "2.00 GB", "4.00 GB", "40.0 GB", "2.00 GB", "0 B", "1.00 GB", "800 ms"],
        ["8bit", "2.00 GB", "1.00 GB"],
    ):
        assert row in seen.rows
    assert "communication" not in [row[0] for row in seen.rows]  # this plan has none
    seen = shown({**PLAN, "total": 90 * GB, "lengths_known": False}, tmp_path)
    assert "run.yaml on Big does not fit" in seen.text
    assert "10.0 GB more than the 80.0 GB that there are" in seen.text
    assert "1,024" not in seen.text


def test_twelve_kernels_are_named_and_the_others_added_up(tmp_path):
    kernels = [[f"kernel_{i}", 0.015 - i * 0.001] for i in range(15)]
    rows = [
        row
        for row in shown({**PLAN, "kernels": kernels}, tmp_path).rows
        if "kernel" in row[0] or "others" in row[0]
    ]
    assert [row[0] for row in rows] == [*(f"kernel_{i}" for i in range(12)), "3 others"]
    assert rows[-1][1] == "6 ms"


def test_parts_that_are_missing_are_omitted(tmp_path):
    empty = {key: [] if isinstance(value, list) else value for key, value in PLAN.items()}
    odd = {
        "memory_rows": [1],
        "kernels": [[]],
        "points": ["x"],
        "now": 3,
        "lengths_known": 4,
        "total": "many",
    }
    for plan in (empty, {}, None):
        assert shown(plan, tmp_path).ids("section") == []
    assert shown(odd, tmp_path).ids("section") == ["time", "points"]


def test_a_page_without_plans_has_no_controls(tmp_path):
    for key in ("gpus", "states", "points"):
        seen = Browsed(page_of({**PLAN, key: []}, tmp_path), tmp_path)
        assert seen.console == []
        assert seen.elements.ids("section").count("what-if") == 0


def test_hostile_texts_do_not_run_and_nothing_is_requested(tmp_path):
    plan = copy.deepcopy(PLAN)
    every = "".join(HOSTILE)
    for key in ("title", "config", "unit", "bound"):
        plan[key] = every
    plan["overrides"] = plan["lines"] = HOSTILE
    plan["memory_rows"] += [[text, GB] for text in HOSTILE]
    plan["kernels"] = [[text, 0.1] for text in HOSTILE]
    plan["gpus"] += [{**plan["gpus"][0], "key": text, "name": text} for text in HOSTILE]
    plan["states"] += [{**plan["states"][0], "name": text} for text in HOSTILE]
    page = page_of(plan, tmp_path)
    elements = Elements(page.read_text(encoding="utf-8"))
    assert json.loads(elements.data)["title"] == every
    assert [tag for tag, _ in elements.tags].count("script") == 4
    assert not [attrs for _, attrs in elements.tags if any(name.startswith("on") for name in attrs)]
    seen = Browsed(page, tmp_path)
    assert seen.console == []
    assert seen.title != "owned"
    assert not re.search(r"<(img|iframe)\b", seen.dom)
    urls = set(re.findall(r'"url":"([^"]+)"', (tmp_path / "net.json").read_text(encoding="utf-8")))
    assert not [url for url in urls if "example.com" in url or url.startswith(page.parent.as_uri() + "/x")]


@pytest.mark.skipif(
    not pathlib.Path(BINARY).with_name("octavo-trainer").exists(),
    reason="this build has no octavo-trainer (LibTorch)",
)
@pytest.mark.parametrize(("size", "fits"), [("8GB", "fits"), ("3GB", "does not fit"), ("24GB", "fits")])
def test_a_size_opens_with_its_own_verdict_and_time(tmp_path, size, fits):
    """8GB and 3GB are cards without a name; 24GB is an L4."""
    (tmp_path / "text.txt").write_text("once upon a time there was a miller " * 2000)
    (tmp_path / "run.yaml").write_text(
        "model: {name: bdh, n_layer: 6, n_embd: 256, n_head: 4}\n"
        "data: {train: text.txt, block_size: 512}\n"
        "training: {optimizer: adamw_8bit, compute_dtype: bfloat16, batch_size: 4, max_steps: 9}\n"
    )
    page = tmp_path / "plan.html"
    words = [BINARY, "plan", "run.yaml", "--gpu", size, "--json", "--html", str(page)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    style = "good" if fits == "fits" else "bad"
    assert f'<span class="badge {style}">{fits}</span>' in Browsed(page, tmp_path).dom
    first, changed, _ = driven(page, tmp_path, {}, {"gpu": "NVIDIA B200"})
    assert first["gpu"].startswith(plan["gpu"]["name"] + ", ")
    assert first["verdict"] == fits
    assert float(first["step"].removesuffix(" ms")) == pytest.approx(
        1e3 * plan["time"]["step_seconds"], rel=0.01
    )
    assert first["notes"] == ""
    assert changed["verdict"] == "fits"
    assert "rough" in changed["notes"]
