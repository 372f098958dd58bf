"""Tests `octavo report`: its files and errors, the page without a browser, and the page in headless
Chromium.

OCTAVO_BIN (or OCTAVO_COMMAND) names the binary; the default is build/bin/octavo. browser.py describes when
the tests with Chromium are skipped.
"""

import copy
import json
import os
import pathlib
import re
import subprocess

import pytest
from browser import HOSTILE, Browsed, Elements
from fake_runs import CONFIG, PARAMS, realistic, start, write_run

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_BINARY = ROOT / "build" / "bin" / "octavo"
BINARY = os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(DEFAULT_BINARY)


def have_report():
    return " report" in subprocess.run([BINARY, "--help"], capture_output=True, text=True, timeout=60).stdout


pytestmark = pytest.mark.skipif(not have_report(), reason="this octavo is built without the trainer")


def report(*args, cwd=None):
    command = [BINARY, "report", *map(str, args)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def page_of(*folders, output):
    done = report(*folders, "--output", output)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{output}\n"
    return output.read_text(encoding="utf-8")


def three_runs(root):
    folders = []
    for seed, (name, bits) in enumerate([("fp32", 8), ("8bit", 2.03), ("4bit", 1.06)]):
        config = copy.deepcopy(CONFIG)
        config["training"]["optimizer"] = f"adamw_{name}"
        records = realistic(seed=seed, steps=400, optimizer=f"AdamW {name}", state_bytes=bits * PARAMS)
        folders.append(write_run(root / name, records, config))
    return folders


def hostile_run(folder):
    """Writes a run in which every text that a run can write is hostile."""
    config = copy.deepcopy(CONFIG)
    for i, text in enumerate(HOSTILE):
        config["training"][f"key{i}"] = text.replace("\u0000", "")
        config["data"][f"<b>{i}"] = "<b>"
    records = []
    for text in HOSTILE:
        records += [
            start(
                device=text, optimizer=text, model=text, master_weights=text, compute_dtype=text, octavo=text
            ),
            {"kind": "train", "step": 1, "loss": 2.0, "lr": 0.1},
            {"kind": "eval", "step": 1, text: 0.5, "better": {text: "higher"}},
            {"kind": "sample", "step": 1, "prompt": text, "text": text},
            {"kind": "warning", "step": 1, "message": text},
            {"kind": "checkpoint", "step": 1, "path": text, "bytes": 5},
            {"kind": "memory", "step": 1, "owners": {"params": 5, text: 5}, "device_peak": 10},
            {"kind": "end", "step": 1, "reason": text, "message": text},
        ]
    return write_run(folder, records, config)


# Files and errors.


def test_one_run_is_written_into_its_folder(tmp_path):
    run = write_run(tmp_path / "run", realistic(steps=50))
    done = report(run)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{run}/report.html\n", "")
    assert (run / "report.html").read_text(encoding="utf-8").endswith("</html>\n")
    assert sorted(each.name for each in run.iterdir()) == ["config.yaml", "metrics.jsonl", "report.html"]


def test_several_runs_are_written_where_the_command_runs(tmp_path):
    runs = three_runs(tmp_path / "runs")
    done = report(*runs, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "octavo-report.html\n")
    assert (tmp_path / "octavo-report.html").exists()
    assert not (runs[0] / "report.html").exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, ["does not exist"]),
        (lambda path: path.write_text("x"), ["is no folder"]),
        (lambda path: path.mkdir(), ["has no metrics.jsonl", "config.yaml and metrics.jsonl"]),
    ],
)
def test_what_is_no_run_is_an_error_that_names_it(tmp_path, make, words):
    good = write_run(tmp_path / "good", realistic(steps=50))
    bad = tmp_path / "bad"
    make(bad)
    done = report(good, bad, "--output", tmp_path / "page.html")
    assert done.returncode == 2
    assert done.stdout == ""
    for word in [f"octavo: {bad}: not a run: ", *words]:
        assert word in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_an_output_that_cannot_be_written_is_an_error(tmp_path):
    run = write_run(tmp_path / "run", realistic(steps=50))
    done = report(run, "--output", tmp_path / "no" / "page.html")
    assert done.returncode == 1
    assert str(tmp_path / "no") in done.stderr


def test_without_runs_the_usage_is_wrong():
    assert report().returncode == 2


# The page, read without a browser.


def test_tables_have_the_numbers(tmp_path):
    run = write_run(tmp_path / "run", realistic(steps=400))
    page = page_of(run, output=tmp_path / "page.html")
    rows = Elements(page).rows
    assert ["optimizer", "adamw_8bit"] in rows
    assert ["learning_rate", "0.001"] in rows
    assert ["stages", "[100000, -1]"] in rows
    assert ["validation", "null"] in rows
    assert ["params", "50.6 MB", "0.81%", "the model's weights"] in rows
    for text in (
        "25,300,992 parameters",
        "51.4 MB",
        "instead of 202 MB",
        "cuda:0 NVIDIA H200",
        "Finished",
        "3.3128",
    ):
        assert text in page
    assert page.count("<rect ") == 6
    assert "<noscript>" in page


def test_skipped_lines_and_warnings_are_announced(tmp_path):
    records = [
        *realistic(steps=50),
        {"kind": "warning", "step": 50, "message": "a strange thing"},
        "{torn",
        "[]",
    ]
    page = page_of(write_run(tmp_path / "run", records), output=tmp_path / "page.html")
    assert "2 lines of metrics.jsonl skipped" in page
    assert "1 warning. The last: a strange thing" in page


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"reason": "interrupted"}, "Interrupted"),
        ({"reason": "diverged"}, "the run diverged at step 7"),
        ({"reason": "failed", "message": "out of memory"}, "the run failed at step 7; out of memory"),
        (None, "still running, or killed"),
    ],
)
def test_the_page_says_how_the_run_ended(tmp_path, end, words):
    records = [start()] + ([{"kind": "end", "step": 7, **end}] if end else [])
    assert words in page_of(write_run(tmp_path / "run", records), output=tmp_path / "page.html")


def test_a_comparison_shows_only_settings_that_differ(tmp_path):
    page = page_of(*three_runs(tmp_path), output=tmp_path / "page.html")
    settings = page[page.index('id="settings"') : page.index("<details>")]
    rows = Elements(settings).rows
    assert rows == [
        ["", "fp32", "8bit", "4bit"],
        ["training.optimizer", "adamw_fp32", "adamw_8bit", "adamw_4bit"],
    ]
    assert settings.count('class="differs"') == 2
    assert ["learning_rate", "0.001"] in Elements(page).rows  # in the table of common settings


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / parent / "run", realistic(steps=50)) for parent in ("a", "b")]
    page = page_of(*runs, output=tmp_path / "page.html")
    assert [each["name"] for each in json.loads(Elements(page).data)["runs"]] == [str(run) for run in runs]


def test_long_curves_are_thinned_without_losing_a_peak(tmp_path):
    records = [start()]
    records += [
        {"kind": "train", "step": i, "loss": 99.5 if i == 7001 else 2 + i % 7 / 10} for i in range(20000)
    ]
    page = page_of(write_run(tmp_path / "run", records), output=tmp_path / "page.html")
    curve = json.loads(Elements(page).data)["runs"][0]["train"]
    assert 1000 < len(curve["x"]) <= 2000
    assert curve["y"][curve["x"].index(7001)] == 99.5
    assert "more than 2000" in page
    assert len(page) < 600_000


def test_numbers_that_were_not_finite_are_gaps(tmp_path):
    records = [start(), *({"kind": "train", "step": i, "loss": None if i == 3 else 2.0} for i in range(6))]
    page = page_of(write_run(tmp_path / "run", records), output=tmp_path / "page.html")
    assert json.loads(Elements(page).data)["runs"][0]["train"]["y"] == [2, 2, 2, None, 2, 2]


def test_hostile_texts_are_text(tmp_path):
    page = page_of(hostile_run(tmp_path / "<img src=x onerror=alert(1)>"), output=tmp_path / "page.html")
    elements = Elements(page)
    counts = [tag for tag, _ in elements.tags]
    assert counts.count("script") == 3
    assert not {"img", "iframe", "object", "embed", "link", "form", "base"} & set(counts)
    assert not [attrs for _, attrs in elements.tags if any(name.startswith("on") for name in attrs)]
    assert all("src" not in attrs for _, attrs in elements.tags)
    assert "\0" not in page
    assert "\x1b" not in page
    assert json.loads(elements.data)["runs"][0]["name"] == "<img src=x onerror=alert(1)>"
    policy = next(attrs["content"] for tag, attrs in elements.tags if tag == "meta" and "http-equiv" in attrs)
    assert "default-src 'none'" in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1]


# The page in a browser.


def charts(seen):
    found = re.search(r'<html[^>]* data-charts="(\d+)"', seen.dom)
    return int(found.group(1)) if found else None


def canvases(page):
    return [attrs["data-chart"] for tag, attrs in Elements(page).tags if tag == "canvas"]


@pytest.mark.parametrize("flags", [[], ["--blink-settings=preferredColorScheme=0"]], ids=["light", "dark"])
def test_a_browser_draws_every_chart_of_a_run(tmp_path, flags):
    page = tmp_path / "page.html"
    text = page_of(write_run(tmp_path / "run", realistic(steps=400)), output=page)
    assert canvases(text) == ["loss", "lr", "grad_norm", "throughput", "memory"]
    seen = Browsed(page, tmp_path, *flags)
    assert seen.console == []
    assert charts(seen) == 5
    assert seen.title == "run · Octavo"
    # Chart.js sets the size of a canvas that it draws.
    sizes = [int(each) for each in re.findall(r"<canvas [^>]*width=\"(\d+)\"", seen.dom)]
    assert len(sizes) == 5
    assert min(sizes) > 300


def test_a_browser_draws_a_comparison(tmp_path):
    page = tmp_path / "page.html"
    text = page_of(*three_runs(tmp_path), output=page)
    assert canvases(text) == ["loss", "difference", "lr", "grad_norm", "throughput", "memory"]
    seen = Browsed(page, tmp_path)
    assert seen.console == []
    assert charts(seen) == 6


def test_a_browser_draws_a_chart_per_metric(tmp_path):
    better = {"loss": "lower", "accuracy": "higher", "__proto__": "lower"}
    images = [start(unit="images", batch_images=8, unigram_entropy=None)]
    for step in range(1, 6):
        images.append({"kind": "train", "step": step, "loss": 2 / step, "images_per_second": 50})
        images.append(
            {
                "kind": "eval",
                "step": step,
                "loss": 2 / step,
                "accuracy": step / 9,
                "__proto__": 1,
                "better": better,
            }
        )
    runs = [
        write_run(tmp_path / "images", images),
        write_run(tmp_path / "text", realistic(steps=400)),
    ]
    page = tmp_path / "page.html"
    text = page_of(*runs, output=page)
    assert canvases(text)[:3] == ["loss", "metric", "metric"]
    assert "Throughput" in text
    seen = Browsed(page, tmp_path)
    assert seen.console == []
    assert charts(seen) == len(canvases(text))


def test_a_browser_draws_what_there_is(tmp_path):
    train = [{"kind": "train", "step": i, "loss": None, "loss_scale": 2**i} for i in range(5)]
    page = tmp_path / "page.html"
    page_of(write_run(tmp_path / "run", [start(unigram_entropy=None), *train]), output=page)
    seen = Browsed(page, tmp_path)
    assert seen.console == []
    assert charts(seen) == 1  # the loss scale; the loss never was a number


def test_a_run_without_records_has_a_page(tmp_path):
    page = tmp_path / "page.html"
    assert "has no record yet" in page_of(write_run(tmp_path / "run", []), output=page)
    seen = Browsed(page, tmp_path)
    assert seen.console == []
    assert charts(seen) == 0


def test_hostile_texts_do_not_run_and_nothing_is_requested(tmp_path):
    page = tmp_path / "page.html"
    page_of(hostile_run(tmp_path / "<img src=x onerror=alert(1)>"), output=page)
    seen = Browsed(page, tmp_path)
    assert seen.console == []  # a script that the policy blocked, or a request, would appear here
    assert seen.title == "&lt;img src=x onerror=alert(1)&gt; · Octavo"
    assert charts(seen) == 2 + len(HOSTILE)  # one chart per metric
    assert not re.search(r"<(img|iframe)\b", seen.dom)
    urls = set(re.findall(r'"url":"([^"]+)"', (tmp_path / "net.json").read_text(encoding="utf-8")))
    assert not [url for url in urls if "example.com" in url or url.startswith(page.parent.as_uri() + "/x")]


def test_the_browser_would_show_errors_requests_and_scripts(tmp_path):
    """Checks that the detection in the preceding tests works."""
    page = tmp_path / "page.html"
    hostile = f"<html><title>x</title>{HOSTILE[0]}<img src='https://example.com/x.png'><script>none()</script></html>"
    page.write_text(hostile, encoding="utf-8")
    seen = Browsed(page, tmp_path)
    assert "none is not defined" in "".join(seen.console)
    assert seen.title == "owned"
    assert "https://example.com/x.png" in (tmp_path / "net.json").read_text(encoding="utf-8")
