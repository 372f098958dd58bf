"""The reader of the pages sees what is wrong with a snippet. Each page here but the first has a mistake."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
import shell
from test_snippets import Reader

GOOD = """
<!-- prelude: model -->
```python
from octavo.optim import AdamW8bit
optimizer = AdamW8bit(model.parameters())
```
```console
$ echo one; echo two
one
…
```
<!-- snippet: part of examples/cpp/train_8bit.cc -->
```cpp
  opt.zero_grad();
```
"""
PART_OF = "<!-- snippet: part of examples/cpp/train_8bit.cc -->\n"
MISTAKES = {
    "a name that is not there": "```python\nfrom octavo.optim import NoSuchClass\n```",
    "a command that fails": "```bash\nfalse\n```",
    "another output": "```console\n$ echo one\ntwo\n```",
    "a key that no config has": "```yaml\n# run.yaml\nlearning_rat: 1\n```",
    "a config without a name": "```yaml\nlearning_rate: 1\n```",
    "C++ that nothing compiles": "```cpp\nint main() {}\n```",
    "a line that the file does not have": PART_OF + "```cpp\nopt.leap();\n```",
    "a test that does not run it": "<!-- snippet: by tests/python/test_nemo.py -->\n```python\n1\n```",
    "an unknown mark": "<!-- snippet: trust me -->\n```python\n1\n```",
    "a file that differs in a line": "<!-- snippet: is tests/toy/lists.h -->\n```cpp\n#pragma once\n```",
}


def read(text: str, folder: Path, build: Path) -> None:
    page = folder / "page.md"
    page.write_text(text + "\n", encoding="utf-8")
    shell.scratch(folder, build)
    reader = Reader(page, folder, build)
    for snippet in pages.snippets(page):
        reader.take(snippet)


def test_a_good_page(tmp_path: Path, build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    read(GOOD, tmp_path, build)


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_a_mistake_is_seen(
    mistake: str, tmp_path: Path, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AssertionError, ImportError)):
        read(MISTAKES[mistake], tmp_path, build)
