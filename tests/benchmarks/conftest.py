"""Puts the scripts, the package of this tree and the helpers of tests/python on the import path."""

import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("adapters/python", "benchmarks", "benchmarks/bdh", "benchmarks/convergence", "tests/python")
sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]
torch.set_num_threads(1)  # the models here are tiny
