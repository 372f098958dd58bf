"""The programs of examples/python run, in this process: starting Python and torch costs more than they do."""

from __future__ import annotations

import runpy
from pathlib import Path

import pages
import pytest
import torch

EXAMPLES = pages.ROOT / "examples/python"
BY_TORCHRUN = {"fsdp2.py"}  # a command of docs/guides/distributed.md starts it
NEED_A_GPU = {"cuda_graph.py"}


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if program.name in BY_TORCHRUN:
        assert program.name in (pages.ROOT / "docs/guides/distributed.md").read_text()
        return
    if program.name in NEED_A_GPU and not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="needs a GPU"):  # one line, and no traceback
            runpy.run_path(str(program), run_name="__main__")
        return
    runpy.run_path(str(program), run_name="__main__")
    first, last = (float(word.rstrip(",")) for word in capsys.readouterr().out.split()[1:4:2])
    assert last < 0.5 * first
