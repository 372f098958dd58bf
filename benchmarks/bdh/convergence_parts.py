"""What the BDH benchmarks share with those of ../convergence: result files, Student's t, plots."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "convergence"))

import panels_svg
import records
import tost

__all__ = ["panels_svg", "records", "tost"]
