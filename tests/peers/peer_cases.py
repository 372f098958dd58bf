"""pytest plugin of run_peer_tests.py: runs the cases that applicable.json lists, and says what came of them.

A case that passes without a step of ours did not test us, and is counted as failed. Cases that
applicable.json lists as `constructors` make no step: they must have made an optimizer of ours.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

DEVICES = ("cpu", "cuda")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("peers")
    group.addoption("--peer", choices=("torchao", "bitsandbytes"), required=True)
    group.addoption("--peer-device", choices=("any", *DEVICES), default="any")
    group.addoption("--peer-report", type=pathlib.Path, required=True)
    group.addoption("--peer-theirs", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Cases(config))


def expand(cases: list[str]) -> dict[str, str]:
    """The device (or "any") of each id as pytest prints it."""
    out = {}
    for case in cases:
        for device in DEVICES if "{device}" in case else ("any",):
            out[case.replace("{device}", device)] = device
    return out


class Cases:
    def __init__(self, config: pytest.Config) -> None:
        listed = json.loads(pathlib.Path(__file__).with_name("applicable.json").read_text())
        self._suite: dict[str, Any] = listed[config.getoption("--peer")]
        self._device: str = config.getoption("--peer-device")
        self._path: pathlib.Path = config.getoption("--peer-report")
        self._theirs: bool = config.getoption("--peer-theirs")
        self._steps = self._made = 0
        self._cases: dict[str, dict[str, Any]] = {}
        self._unlisted: list[str] = []
        self._missing: list[str] = []
        self._not_applicable: dict[str, list[str]] = {}
        if not self._theirs:
            from octavo.optim import CPUOffloadOptimizer, Optimizer

            ours = Optimizer, CPUOffloadOptimizer
            register_optimizer_step_post_hook(lambda o, *_: self._count(isinstance(o, ours)))
            made = Optimizer.__init__

            def counted(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
                self._made += 1
                made(optimizer, *args, **kwargs)

            Optimizer.__init__ = counted  # type: ignore[method-assign]

    def _count(self, ours: bool) -> None:
        self._steps += ours

    @pytest.hookimpl(tryfirst=True)  # before -k takes cases away
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        wanted = expand(self._suite["applicable"])
        reasons = {c: part["reason"] for part in self._suite["not_applicable"] for c in expand(part["cases"])}
        kept, left = [], []
        for item in items:
            case = _case(item.nodeid)
            device = wanted.get(case)
            if device is not None and (device == "any" or self._device in ("any", device)):
                kept.append(item)
                continue
            left.append(item)
            if case in reasons:
                self._not_applicable.setdefault(reasons[case], []).append(case)
            elif case not in wanted:
                self._unlisted.append(case)
        collected = {_case(item.nodeid) for item in items}
        devices = ("any", *(d for d in DEVICES if d == "cpu" or torch.cuda.is_available()))
        self._missing = [
            case
            for case, device in wanted.items()
            if case not in collected and device in devices and self._device in ("any", device)
        ]
        for lifted in self._suite["skips_lifted"]:
            for item in kept:
                if _case(item.nodeid) in lifted["cases"]:
                    item.own_markers = [
                        m for m in item.own_markers if m.kwargs.get("reason") != lifted["mark"]
                    ]
        items[:] = kept
        config.hook.pytest_deselected(items=left)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._steps = self._made = 0
        outcome = yield
        # Distributed cases step in processes of their own.
        elsewhere = "TestFSDP2" in item.nodeid
        made = self._made and _case(item.nodeid) in self._suite.get("constructors", ())
        if outcome.excinfo is None and not (self._steps or made or elsewhere or self._theirs):
            outcome.force_exception(AssertionError("passed without a step of octavo.optim"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        found = self._cases.setdefault(_case(report.nodeid), {"outcome": report.outcome, "seconds": 0.0})
        if report.outcome == "failed":  # of a teardown, too
            found["outcome"] = "failed"
        found["seconds"] = round(found["seconds"] + report.duration, 2)
        if report.outcome != "passed":
            found["why"] = _why(report)
        elif not self._theirs:
            found["steps"] = self._steps

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        report = {
            "cases": self._cases,
            "not_applicable": self._not_applicable,
            "unlisted": self._unlisted,
            "missing": self._missing,
        }
        self._path.write_text(json.dumps(report, indent=1))


def _case(nodeid: str) -> str:
    """The id in applicable.json: a class in it has the same name on both sides, but not the same module."""
    return re.sub(r"<class '[\w.]*\.(\w+)'>", r"\1", nodeid.split("::", 1)[1])


def _why(report: pytest.TestReport) -> str:
    """One line: the reason of a skip, or where and how a case failed."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped").removeprefix(": ")
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr).strip().splitlines()[-1]
    message = " ".join(str(crash.message).split())
    return f"{pathlib.Path(crash.path).name}:{crash.lineno}: {message[:300]}"
