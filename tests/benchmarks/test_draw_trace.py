"""Tests draw_trace.py: how it reads a trace, and its picture."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from typing import Any
from xml.etree import ElementTree

import pytest

NAMES = {1: "cuda:0 up", 2: "model"}
EVENTS = [
    (1, "states up", 0, 4000),
    (1, "states up", 4001, 1999),
    (2, "forward 0", 1000, 500),
    (2, "backward 0", 5000, 5000),
]


@pytest.fixture
def script() -> Any:
    return importlib.import_module("draw_trace")


def trace() -> dict[str, Any]:
    named = [
        {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for tid, name in NAMES.items()
    ]
    done = [
        {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": begin, "dur": length}
        for tid, name, begin, length in EVENTS
    ]
    return {"traceEvents": [*named, *done]}


def test_intervals_of_a_kind(script: Any) -> None:
    found = script.read(trace())
    assert {each.kind for each in found} == {"states up", "forward", "backward"}
    up = [each for each in found if each.row == "cuda:0 up"]
    assert [(each.begin, each.end) for each in script.merged(up, 0.01)] == [(0.0, 6.0)]
    assert len(script.merged(up, 0.0)) == 2
    assert script.busy(up, 0.0, 10.0) == pytest.approx(0.5999)
    assert script.busy([*up, *up], 5.0, 10.0) == pytest.approx(0.2)


def test_the_picture(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    source, picture = tmp_path / "a.json", tmp_path / "a.svg"
    source.write_text(json.dumps(trace()))
    monkeypatch.setattr(sys, "argv", ["draw_trace.py", str(source), str(picture), "--title", "a < b"])
    assert script.main() == 0
    root = ElementTree.parse(picture).getroot()
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b" in words
    assert words.index("model") < words.index("cuda:0 up")  # the model is above the queues
    assert [word for word in words if word and word.endswith("%")] == ["55%", "60%"]
    boxes = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("height") == str(script.BAR)]
    ends = [(float(e.get("x")), float(e.get("x")) + float(e.get("width"))) for e in boxes]
    assert max(end for _, end in ends) == pytest.approx(script.LEFT + script.WIDTH, abs=0.2)


def test_a_trace_without_intervals(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    source = tmp_path / "a.json"
    source.write_text('{"traceEvents": []}')
    monkeypatch.setattr(sys, "argv", ["draw_trace.py", str(source), str(tmp_path / "a.svg")])
    with pytest.raises(SystemExit):
        script.main()
    assert "has no intervals" in capsys.readouterr().err
