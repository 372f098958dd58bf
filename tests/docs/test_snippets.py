"""Every fenced snippet of README and the guides runs, or carries a mark that says why not. See pages.py."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import compiled
import pages
import preludes
import pytest
import shell
import torch


class Reader:
    """Follows one page from top to bottom in a scratch folder."""

    def __init__(self, page: Path, folder: Path, build: Path) -> None:
        self.folder, self.build = folder, build
        prelude = pages.prelude_of(page)
        self.names: dict[str, Any] = getattr(preludes, prelude)() if prelude else {}
        self.inside: dict[str, list[pages.Snippet]] = {}

    def take(self, snippet: pages.Snippet) -> None:
        if snippet.mark in ("", "file"):
            getattr(self, snippet.language)(snippet)
        elif snippet.mark == "inside":
            self.run_inside(snippet)
        elif snippet.mark == "is":
            self.is_file(snippet)
        elif snippet.mark == "part of":
            self.is_part_of(snippet)
        elif snippet.mark == "by":
            text = (pages.ROOT / snippet.subject).read_text()
            assert snippet.page.name in text, f"{snippet.place}: {snippet.subject} does not name its page"
        elif snippet.mark == "gpu":
            self.for_a_gpu(snippet)
        else:
            assert snippet.mark == "needs", f"{snippet.place}: unknown mark {snippet.mark!r}"

    def for_a_gpu(self, snippet: pages.Snippet) -> None:
        """Runs a snippet where there is a GPU; programs are compiled where there are CUDA's headers."""
        if snippet.subject.startswith("file "):
            (self.folder / snippet.subject.split()[-1]).write_text(snippet.text)
        elif snippet.subject.startswith("inside ") and compiled.CUDA_INCLUDE.is_dir():
            self.run_inside(snippet, gpu=True)
        elif snippet.language in ("python", "console") and torch.cuda.is_available():
            getattr(self, snippet.language)(snippet)

    def run_inside(self, snippet: pages.Snippet, *, gpu: bool = False) -> None:
        before = self.inside.setdefault(snippet.subject, [])
        before.append(snippet)
        compiled.run_inside(before, self.folder, self.build, gpu=gpu)

    def is_file(self, snippet: pages.Snippet) -> None:
        file = (pages.ROOT / snippet.subject).read_text()
        assert snippet.text == file, f"{snippet.place}: is not {snippet.subject}"

    def is_part_of(self, snippet: pages.Snippet) -> None:
        file = textwrap.dedent((pages.ROOT / snippet.subject).read_text())
        lines = {line.strip() for line in file.splitlines()}
        for line in snippet.text.splitlines():
            code = line.split("  #")[0].strip()
            assert not code or code in lines, f"{snippet.place}: {snippet.subject} has no line {code!r}"

    def text(self, snippet: pages.Snippet) -> None:
        pass

    def python(self, snippet: pages.Snippet) -> None:
        if snippet.mark == "file":
            (self.folder / snippet.subject).write_text(snippet.text)
            return
        code = "\n" * (snippet.line - 1) + snippet.text
        exec(compile(code, str(snippet.page), "exec"), self.names)

    def yaml(self, snippet: pages.Snippet) -> None:
        """A config of a run: its first line names its file."""
        name = snippet.text.partition("\n")[0].removeprefix("# ").split()[0]
        assert name.endswith(".yaml"), f"{snippet.place}: expected '# NAME.yaml' as the first line"
        (self.folder / name).write_text(snippet.text)
        shell.run(f"octavo train {name} --print-config", self.folder, self.build)

    def bash(self, snippet: pages.Snippet) -> None:
        for command, shown in shell.commands(snippet):
            if shell.reason_elsewhere(command):
                continue
            printed = shell.run(shell.shortened(command), self.folder, self.build)
            if shown is not None:
                expected = "\n".join(shown)
                assert shell.matches(shown, printed), (
                    f"{snippet.place}: shows\n{expected}\nprinted\n{printed}"
                )

    console = bash

    def cmake(self, snippet: pages.Snippet) -> None:
        compiled.configure(snippet, self.folder, self.build)

    def cpp(self, snippet: pages.Snippet) -> None:
        assert snippet.mark == "file", f"{snippet.place}: a snippet of C or C++ needs a mark"
        (self.folder / snippet.subject).write_text(snippet.text)

    c = cpp


@pytest.mark.parametrize("page", pages.tested_pages(), ids=lambda page: page.name)
def test_every_snippet_of(page: Path, tmp_path: Path, build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a checkout"  # a path with a space
    folder.mkdir()
    shell.scratch(folder, build)
    monkeypatch.chdir(folder)
    reader = Reader(page, folder, build)
    for snippet in pages.snippets(page):
        reader.take(snippet)
