"""The scripts of benchmarks/ on the package of this tree, and on one thread: their models here are tiny."""

import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "adapters/python"))
torch.set_num_threads(1)
