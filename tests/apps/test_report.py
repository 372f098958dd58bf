"""Tests `octavo report`: its files and errors, its data, and what headless Chromium shows.

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
from browser import HOSTILE, Browsed, Elements, with_script
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
        (lambda path: path.write_text("x"), ["is not a folder"]),
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


# What the page shows in a browser.


def browsed(folder, *runs, flags=()):
    """Returns the report of the runs in a browser, which finds no error in it."""
    page_of(*runs, output=folder / "page.html")
    seen = Browsed(folder / "page.html", folder, *flags)
    assert seen.console == []
    return seen


def shown(folder, *runs):
    return browsed(folder, *runs).elements


UNKNOWN = "\u2013"


def test_tables_have_the_numbers(tmp_path):
    seen = shown(tmp_path, write_run(tmp_path / "run", realistic(steps=400)))
    assert ["optimizer", "adamw_8bit"] in seen.rows
    assert ["learning_rate", "0.001"] in seen.rows
    assert ["stages", "[100000, -1]"] in seen.rows
    assert ["validation", "null"] in seen.rows
    assert ["params", "50.6 MB", "0.81%", "the model's weights"] in seen.rows
    for text in (
        "25,300,992 parameters",
        "51.4 MB",
        "instead of 202 MB",
        "cuda:0 NVIDIA H200",
        "Finished",
        "3.3128",
        "began 2026-11-15 13:00 UTC",
        "is the most on the device during the run, evaluations included",
    ):
        assert text in seen.text
    assert sum(attrs.get("title", "").endswith("B") for tag, attrs in seen.tags if tag == "span") == 6
    assert seen.ids("section") == ["summary", "curves", "memory", "settings", "evaluations"]


def test_the_shares_of_evaluations_and_checkpoints(tmp_path):
    end = {"kind": "end", "step": 1, "reason": "finished", "seconds": 200.0}
    end |= {"evaluation_seconds": 50.0, "checkpoint_seconds": 10.0}
    seen = shown(tmp_path, write_run(tmp_path / "run", [start(), end]))
    for share in ("25", "5"):
        assert re.search(rf"(?<!\d){share}(\.0+)?% of the time", seen.text), seen.text


def test_numbers_are_written_as_the_command_writes_them(tmp_path):
    calls = {
        **{"grouped(25300992)": "25,300,992", "grouped(-1234)": "-1,234", "grouped(999)": "999"},
        **{"count(25300992)": "25.3M", "bytes(51.4e6)": "51.4 MB", "bytes(999)": "999 B"},
        **{"bytes(999999)": "1.00 MB", "duration(5.84)": "5.8 s", "duration(59.6)": "1 min 00 s"},
        **{"duration(7500)": "2 h 05 min", "duration(3 * 86400 + 3600)": "3 d 01 h"},
        **{"percent(0.254)": "25.4%", "date(1794747600)": "2026-11-15 13:00 UTC"},
        **{"stepTime(0.38)": "380 ms", "stepTime(1.254)": "1.25 s", "stepTime(1234)": "1,234 s"},
        **{f"{name}(null, 2)": UNKNOWN for name in ("fixed", "significant", "grouped", "count", "bytes")},
        **{f"{name}(NaN)": UNKNOWN for name in ("duration", "percent", "date", "stepTime")},
    }
    page = tmp_path / "page.html"
    page_of(write_run(tmp_path / "run", []), output=page)
    script = "".join(f"page.main.append(page.make('pre', '', page.{call}));" for call in calls)
    page.write_text(with_script(page, script), encoding="utf-8")
    dom = Browsed(page, tmp_path).dom
    texts = re.findall(r"<pre>([^<]*)</pre>", dom[dom.index("</noscript>") :])
    assert dict(zip(calls, texts, strict=True)) == calls


def test_without_scripts_the_page_has_its_numbers_as_text(tmp_path):
    run = write_run(tmp_path / "run", realistic(steps=400))
    page = page_of(run, output=tmp_path / "page.html")
    text = page[page.index("<noscript>") : page.index("</noscript>")]
    for words in ("JavaScript", "params: 25300992", "- training.optimizer, adamw_8bit", "name: run"):
        assert words in text


def test_skipped_lines_and_warnings_are_announced(tmp_path):
    records = [
        *realistic(steps=50),
        {"kind": "warning", "step": 50, "message": "a strange thing"},
        "{torn",
        "[]",
    ]
    seen = shown(tmp_path, write_run(tmp_path / "run", records))
    assert "2 lines of metrics.jsonl skipped" in seen.text
    assert "1 warning. The last: a strange thing" in seen.text
    assert ["50", "a strange thing"] in seen.rows


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
    assert words in shown(tmp_path, write_run(tmp_path / "run", records)).text


def test_a_comparison_shows_only_settings_that_differ(tmp_path):
    dom = browsed(tmp_path, *three_runs(tmp_path)).dom
    settings = Elements(dom[dom.index('<section id="settings"') : dom.index("<details>")])
    assert settings.rows == [
        ["", "fp32", "8bit", "4bit"],
        ["training.optimizer", "adamw_fp32", "adamw_8bit", "adamw_4bit"],
    ]
    assert settings.count("td", "differs") == 2
    assert ["learning_rate", "0.001"] in Elements(dom).rows  # in the table of common settings
    assert "<td>202 MB</td><td>51.4 MB <small>instead of 202 MB in fp32 (25.4%)</small></td>" in dom
    assert '<td class="best">26.8 MB' in dom


BETTER = {"loss": "lower", "accuracy": "higher"}
IMAGES = [
    {"kind": "start", "step": 0, "unit": "images", "batch_images": 8, "data": "many images"},
    {"kind": "train", "step": 2, "loss": 1, "images": 16, "images_per_second": 50, "memory": {"host": 9000}},
    {"kind": "eval", "step": 2, "loss": 1.5, "accuracy": 0.75, "images": 64, "seconds": 1, "better": BETTER},
    {"kind": "eval", "step": 4, "loss": 1.2, "accuracy": 0.5, "images": 64, "seconds": 1, "better": BETTER},
    {"kind": "memory", "step": 2, "owners": {"params": 1000, "grads": 500}},
]


def test_a_task_names_its_unit_and_its_metrics(tmp_path):
    seen = shown(tmp_path, write_run(tmp_path / "run", IMAGES))
    assert "Evaluation accuracy 0.5000 highest 0.7500 at step 2" in seen.text
    for text in (
        *("Images per second 50", "8 images a step", "many images", "higher is better"),
        *("of the process, in host memory", "the tensors at the peak of one training step"),
        "is the most of the process during the run",
    ):
        assert text in seen.text
    assert ["step", "loss", "accuracy", "images", "time", "stage"] in seen.rows
    assert {"data-chart": "metric", "data-metric": "accuracy"}.items() <= canvases(seen)[1].items()
    for word in ("oken", "nats", "bits per", "nigram"):  # words of another task
        assert word not in seen.text


def test_a_log_from_before_tasks_counts_tokens(tmp_path):
    records = [
        {"kind": "start", "step": 0, "batch_tokens": 8, "unigram_entropy": 3},
        {"kind": "train", "step": 2, "loss": 1, "tokens": 16, "tokens_per_second": 50},
        {"kind": "eval", "step": 2, "loss": 1.5, "tokens": 64, "seconds": 1},
    ]
    seen = shown(tmp_path, write_run(tmp_path / "run", records))
    for text in ("Tokens per second 50", "8 tokens a step", "in nats per token", "Unigram entropy 3.0000"):
        assert text in seen.text
    assert ["step", "loss", "bits per token", "tokens", "time", "stage"] in seen.rows


def test_runs_of_other_tasks_have_the_same_rows(tmp_path):
    runs = [
        write_run(tmp_path / "words", [start(unigram_entropy=3.0), {"kind": "eval", "step": 1, "loss": 2.0}]),
        write_run(tmp_path / "images", [IMAGES[0], {**IMAGES[2], "loss": None}, IMAGES[2]]),
    ]
    rows = {row[0]: row[1:] for row in shown(tmp_path, *runs).rows if len(row) == 3}
    assert rows["Evaluation accuracy"] == [UNKNOWN, "0.7500 its highest"]
    assert rows["Evaluation loss"] == ["2.0000 its lowest", "1.5000 its lowest"]
    assert rows["Unigram entropy"] == ["3.0000 evaluation is 1.0000 below it", UNKNOWN]


def test_examples_and_the_word_error_rate(tmp_path):
    better = {"loss": "lower", "wer": "lower"}
    said = {"name": "<a>", "reference": "the <i>cat</i> sat", "hypothesis": "the hat & sat"}
    records = [
        {"kind": "eval", "step": 2, "loss": 1.5, "wer": 0.1138, "better": better, "examples": [said]},
        {"kind": "eval", "step": 4, "loss": 1.25, "wer": 0.125, "better": better},
    ]
    dom = browsed(tmp_path, write_run(tmp_path / "run", records)).dom
    assert "The evaluation of step 2." in dom
    assert (
        "&lt;a&gt;</th><td>the <del>&lt;i&gt;cat&lt;/i&gt;</del> sat</td>"
        '<td>the <ins>hat</ins> <ins>&amp;</ins> sat</td><td class="num">2 of 3</td>'
    ) in dom
    seen = Elements(dom[dom.index('id="summary"') :])
    assert "WER 12.50% lowest 11.38% at step 2" in seen.text
    assert ["step", "loss", "WER", "units", "time", "stage"] in seen.rows
    assert ["2", "1.5000", "11.38%", UNKNOWN, UNKNOWN, UNKNOWN] in seen.rows
    assert canvases(seen)[1]["data-metric"] == "wer"  # the curve keeps its name
    bare = shown(tmp_path, write_run(tmp_path / "bare", records[1:]))
    assert "examples" not in bare.ids("section")


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
    curve = json.loads(Elements(page).data)["runs"][0]["curves"]["train"]
    assert 1000 < len(curve["x"]) <= 2000
    assert curve["y"][curve["x"].index(7001)] == 99.5
    assert len(page) < 600_000
    assert "more than 2000" in Browsed(tmp_path / "page.html", tmp_path).elements.text


def test_numbers_that_were_not_finite_are_gaps(tmp_path):
    records = [start(), *({"kind": "train", "step": i, "loss": None if i == 3 else 2.0} for i in range(6))]
    page = page_of(write_run(tmp_path / "run", records), output=tmp_path / "page.html")
    assert json.loads(Elements(page).data)["runs"][0]["curves"]["train"]["y"] == [2, 2, 2, None, 2, 2]


def test_hostile_texts_are_text(tmp_path):
    page = page_of(hostile_run(tmp_path / "<img src=x onerror=alert(1)>"), output=tmp_path / "page.html")
    elements = Elements(page)
    counts = [tag for tag, _ in elements.tags]
    assert counts.count("script") == 5
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


def canvases(elements):
    return [attrs for tag, attrs in elements.tags if tag == "canvas"]


def kinds(seen):
    return [attrs["data-chart"] for attrs in canvases(seen.elements)]


@pytest.mark.parametrize("flags", [[], ["--blink-settings=preferredColorScheme=0"]], ids=["light", "dark"])
def test_a_browser_draws_every_chart_of_a_run(tmp_path, flags):
    seen = browsed(tmp_path, write_run(tmp_path / "run", realistic(steps=400)), flags=flags)
    assert kinds(seen) == ["loss", "lr", "grad_norm", "throughput", "memory"]
    assert charts(seen) == 5
    assert seen.title == "run · Octavo"
    # Chart.js sets the size of a canvas that it draws.
    sizes = [int(each) for each in re.findall(r"<canvas [^>]*width=\"(\d+)\"", seen.dom)]
    assert len(sizes) == 5
    assert min(sizes) > 300


def test_a_browser_draws_a_comparison(tmp_path):
    seen = browsed(tmp_path, *three_runs(tmp_path))
    assert kinds(seen) == ["loss", "difference", "lr", "grad_norm", "throughput", "memory"]
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
    seen = browsed(tmp_path, *runs)
    assert kinds(seen)[:3] == ["loss", "metric", "metric"]
    assert "Throughput" in seen.elements.text
    assert charts(seen) == len(kinds(seen))


def test_a_browser_draws_what_there_is(tmp_path):
    train = [{"kind": "train", "step": i, "loss": None, "loss_scale": 2**i} for i in range(5)]
    seen = browsed(tmp_path, write_run(tmp_path / "run", [start(unigram_entropy=None), *train]))
    assert charts(seen) == 1  # the loss scale; the loss never was a number


def test_a_run_without_records_has_a_page(tmp_path):
    seen = browsed(tmp_path, write_run(tmp_path / "run", []))
    assert "has no record yet" in seen.elements.text
    assert charts(seen) == 0


def test_hostile_texts_do_not_run_and_nothing_is_requested(tmp_path):
    # A script that the policy blocked, or a request, would appear in the console.
    seen = browsed(tmp_path, hostile_run(tmp_path / "<img src=x onerror=alert(1)>"))
    assert seen.title == "&lt;img src=x onerror=alert(1)&gt; · Octavo"
    assert charts(seen) == 2 + len(HOSTILE)  # one chart per metric
    assert not re.search(r"<(img|iframe)\b", seen.dom)
    urls = set(re.findall(r'"url":"([^"]+)"', (tmp_path / "net.json").read_text(encoding="utf-8")))
    assert not [url for url in urls if "example.com" in url or url.startswith(tmp_path.as_uri() + "/x")]


def test_the_browser_would_show_errors_requests_and_scripts(tmp_path):
    """Checks that the detection in the preceding tests works."""
    page = tmp_path / "page.html"
    hostile = f"<html><title>x</title>{HOSTILE[0]}<img src='https://example.com/x.png'><script>none()</script></html>"
    page.write_text(hostile, encoding="utf-8")
    seen = Browsed(page, tmp_path)
    assert "none is not defined" in "".join(seen.console)
    assert seen.title == "owned"
    assert "https://example.com/x.png" in (tmp_path / "net.json").read_text(encoding="utf-8")
