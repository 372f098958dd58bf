"""C, C++ and CMake of the pages, against the headers and the library of the tree.

Statements run at the end of main() of the program that the page shows before them; lines of CMake configure a
small project.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pages
import torch

CXX = os.environ.get("CXX", "c++")
CC = os.environ.get("CC", "cc")
CUDA_INCLUDE = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"

_INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)


def _check(arguments: list[str], place: str) -> None:
    done = subprocess.run(
        arguments, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=300
    )
    assert done.returncode == 0, f"{place}: {' '.join(arguments)}\n{done.stdout}"


def run_inside(snippets: list[pages.Snippet], folder: Path, build: Path, *, gpu: bool = False) -> None:
    """Runs statements at the end of main() of a program. Each snippet is in a scope inside that of the one
    before it, as a reader meets them. Without a GPU, programs for a GPU are only compiled.
    """
    program = folder / snippets[-1].subject.split()[-1]
    text = program.read_text()
    end = text.rindex("  octavo_engine_destroy" if program.suffix == ".c" else "}\n")
    includes = "".join(_INCLUDE.findall("".join(s.text for s in snippets)))
    scopes = "".join("{\n" + _INCLUDE.sub("", s.text) for s in snippets) + "}\n" * len(snippets)
    together = folder / f"with_{program.name}"
    together.write_text(includes + text[:end] + scopes + text[end:])
    compiler = [CC, "-std=c99"] if program.suffix == ".c" else [CXX, "-std=c++20"]
    place, executable = snippets[-1].place, str(folder / "with_program")
    found = [f"-I{pages.ROOT / 'include'}"]
    library = ["-L", str(build / "lib"), "-loctavo", f"-Wl,-rpath,{build / 'lib'}"]
    if gpu:
        found.append(f"-I{CUDA_INCLUDE}")
        library += ["-L", str(CUDA_INCLUDE.parent / "lib64"), "-lcudart"]
        if not torch.cuda.is_available():
            _check([*compiler, "-fsyntax-only", *found, str(together)], place)
            return
    _check([*compiler, *found, str(together), *library, "-o", executable], place)
    _check([executable], place)


def configure(snippet: pages.Snippet, folder: Path, build: Path) -> None:
    """Configures a project of those lines against an installed library."""
    prefix, project = folder / "prefix", folder / "project"
    _check(["cmake", "--install", str(build), "--prefix", str(prefix)], snippet.place)
    project.mkdir(exist_ok=True)
    (project / "app.cc").write_text("int main() {}\n")
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(app LANGUAGES C CXX)\n"
        f"add_executable(app app.cc)\n{snippet.text}"
    )
    torch = (pages.ROOT / ".venv").resolve().glob("lib/python*/site-packages/torch")
    found = f"-DCMAKE_PREFIX_PATH={';'.join(map(str, [prefix, *torch]))}"
    _check(["cmake", "-S", str(project), "-B", str(project / "build"), found], snippet.place)
