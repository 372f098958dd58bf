"""Imports what the BDH benchmarks share with the other scripts: result files, Student's t, plots, tables."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "convergence"))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import panels_svg
import records
import report
import tost

__all__ = ["panels_svg", "records", "report", "tost"]
