"""Tests kernel_times.py without a GPU: the sums of kernels, and the error."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch


def test_kernels_are_added_up_by_name_and_step() -> None:
    script = importlib.import_module("kernel_times")
    kernels = [
        ("first", 3.0),
        ("second", 10.0),
        ("first", 5.0),
        ("second", 12.0),
        ("first", 4.0),
        ("first", 4.0),
    ]
    assert script.totals(kernels, steps=2) == [("second", 11.0, 1.0), ("first", 8.0, 2.0)]


def test_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    script = importlib.import_module("kernel_times")
    monkeypatch.setattr(sys, "argv", ["kernel_times.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA device"):
        script.main()
