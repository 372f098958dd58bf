"""The pages for users of other libraries (moving.md, nemo.md), and credits.md: the names in the tables exist.

In a right cell each code span is Python that would run with the usual names (model, params, loss …), a
line of a config with a key of docs/config.md, or a command. In left cells of bitsandbytes and torchao names
are those of the installed packages.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import re
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import octavo
import octavo.optim
import pages
import pytest
import torch

MOVING, NEMO = (pages.ROOT / "docs/guides" / name for name in ("moving.md", "nemo.md"))
PAGES = (MOVING, NEMO)
ORIGINS = ("bitsandbytes", "torchao", "DeepSpeed", "Transformer Engine")  # sections of moving.md
# Names that code in a table may use. Their attributes are not checked.
GIVEN = dict.fromkeys(
    ("model", "loss", "params", "module", "name", "block", "x", "p", "weight", "blank", "layer")
)
COMMAND = re.compile(r"octavo (train|data make-tokenizer|transcribe|evaluate|export)( |$)")
_SPAN = re.compile(r"`([^`]+)`")


def rows(page: Path, section: str = "") -> list[tuple[str, str]]:
    """Left and right cells of the tables that end with the column `here`: of a section, or of the page."""
    found, inside = [], False
    text = page.read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        inside = line.startswith("|") and (
            inside or cells[-1] == "here |" or cells[-1].rstrip(" |") == "here"
        )
        if inside and len(cells) == 2 and "---" not in line and cells[1].rstrip(" |") != "here":
            found.append((cells[0].lstrip("| "), cells[1].rstrip(" |")))
    return found


def cells() -> Iterator[tuple[Path, str, str]]:
    for page in PAGES:
        for left, right in rows(page):
            yield page, left, right


@functools.cache
def config_keys() -> frozenset[str]:
    """Every key that docs/config.md lists, and its other spellings; `model.encoder` for sections."""
    text = (pages.ROOT / "docs/config.md").read_text(encoding="utf-8")
    named = {name for line in text.splitlines() if line.startswith("| `") for name in _SPAN.findall(line)}
    return frozenset({*named, *(name.split(".")[0] for name in named), "training", "model", "data"})


def is_config(span: str) -> bool:
    """Whether it is a line of a config of which docs/config.md has the key."""
    key, _, _ = span.partition(": ")
    parts = key.rstrip(":").split(".")
    if parts[0] in ("model", "training", "data") and len(parts) > 1:
        parts = parts[1:]
    return ".".join(parts) in config_keys()


class Names(ast.NodeVisitor):
    """AssertionError for a name, an attribute or a keyword that does not exist."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope

    def value(self, node: ast.expr) -> Any:
        """The object that an expression names; None where it is only known when it runs."""
        if isinstance(node, ast.Name):
            assert node.id in self.scope, f"no name {node.id}"
            return self.scope[node.id]
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            if not isinstance(owner, types.ModuleType | type):
                return None
            if isinstance(owner, types.ModuleType) and not hasattr(owner, node.attr):
                importlib.import_module(f"{owner.__name__}.{node.attr}")
            assert hasattr(owner, node.attr), f"{owner.__name__} has no {node.attr}"
            return getattr(owner, node.attr)
        self.visit(node)
        return None

    def visit_Name(self, node: ast.Name) -> None:
        self.value(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.value(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = importlib.import_module(str(node.module))
        for alias in node.names:
            assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            importlib.import_module(alias.name)

    def visit_Call(self, node: ast.Call) -> None:
        called = self.value(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            self.visit(keyword.value)
        if callable(called) and all(keyword.arg for keyword in node.keywords):
            if called is octavo.optim.CPUOffloadOptimizer:  # its options are those of the class inside
                return
            try:
                known = inspect.signature(called).parameters
            except ValueError:  # built in
                return
            if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
                for keyword in node.keywords:
                    assert keyword.arg in known, f"{ast.unparse(node.func)} has no argument {keyword.arg}"


def statement(span: str) -> str:
    return f"{span} pass" if span.startswith("with ") else span


def check_python(span: str, scope: dict[str, Any]) -> None:
    Names(scope).visit(ast.parse(statement(span)))


def here() -> dict[str, Any]:
    """What a program that has moved finds defined."""
    optimizers = {name: getattr(octavo.optim, name) for name in octavo.optim.__all__}
    given: dict[str, Any] = {**GIVEN, "octavo": octavo, "torch": torch, "functools": functools, **optimizers}
    given |= {
        "optimizer": octavo.optim.AdamW8bit,
        "fp8": importlib.import_module("octavo.fp8"),
        "recipe": None,
    }
    return given


def check_here(span: str, page: Path) -> None:
    """AssertionError where the span of a right cell names something that does not exist."""
    if COMMAND.match(span) or span.startswith("torchrun ") or is_config(span):
        return  # test_the_commands_exist checks commands
    if page == NEMO and re.fullmatch(r"(optim\.name: )?\w*_\w+", span):
        name = span.removeprefix("optim.name: ")  # `adamw_8bit`, or `_4bit` alone
        assert octavo.integrations.optimizer_named("adamw" + name if name.startswith("_") else name)
        return
    if span in inspect.signature(octavo.optim.AdamW8bit).parameters or re.fullmatch(r'"\w+"', span):
        return  # an argument, or a key of a state
    try:
        ast.parse(statement(span))
    except SyntaxError:
        raise AssertionError(f"{page.name}: {span!r} is no Python, config or command") from None
    check_python(span, here())


def test_readme_and_compatibility_link_every_origin() -> None:
    for place, folder in {"README.md": "docs/guides/", "docs/compatibility.md": "guides/"}.items():
        text = (pages.ROOT / place).read_text(encoding="utf-8")
        for origin in ORIGINS:
            assert f"({folder}moving.md#{origin.lower().replace(' ', '-')})" in text, f"{place}: {origin}"
        assert f"({folder}nemo.md)" in text, place


@pytest.mark.parametrize("origin", ORIGINS)
def test_an_origin_has_a_table(origin: str) -> None:
    assert len(rows(MOVING, origin)) >= 12


@pytest.mark.parametrize(("page", "left", "right"), list(cells()))
def test_names_on_the_right_exist(page: Path, left: str, right: str) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", right)
    for span in _SPAN.findall(text):
        check_here(span, page)


@pytest.mark.parametrize(
    "span",
    [
        "AdamW9bit(params)",
        "AdamW8bit(params, ofload='host')",
        "octavo.fp8.convrt(model)",
        "from octavo.optim import Adam9bit",
        "ofload: host",
        "fp8.Recipe(amax_history=3)",
        "optimizer.portable_state()",
    ],
)
def test_a_name_that_is_not_there_is_seen(span: str) -> None:
    with pytest.raises((AssertionError, ImportError)):
        check_here(span, PAGES[0])


@pytest.mark.parametrize("origin", ["bitsandbytes", "torchao"])
def test_names_on_the_left_exist(origin: str) -> None:
    """Those with a module before them, and calls of classes."""
    if importlib.util.find_spec(origin) is None:
        pytest.skip(f"{origin} is not installed")
    theirs = importlib.import_module(origin)
    module = importlib.import_module(f"{origin}.optim")
    checked = 0
    for left, _ in rows(MOVING, origin):
        for span in _SPAN.findall(left):
            if "prototype" in span:
                continue  # the former place of torchao's optimizers
            if origin == "torchao" and re.match(r"(Float8|convert_)", span):
                module_of = importlib.import_module("torchao.float8")
            elif span.startswith(("bnb.", "Adam", "_Adam", "CPUOffload", "from ")):
                module_of = module
            else:
                continue
            names = {name: getattr(module_of, name) for name in dir(module_of)}
            check_python(span, {**names, **GIVEN, "bnb": theirs, "torch": torch})
            checked += 1
    assert checked >= 8


def test_the_commands_exist(build: Path) -> None:
    """Each subcommand that the tables name, with its options."""
    spans = {span for _, _, right in cells() for span in _SPAN.findall(right) if COMMAND.match(span)}
    assert len(spans) >= 5
    for span in spans:
        words = span.split()[1:]
        names = words[: 2 if words[0] == "data" else 1]
        done = subprocess.run(
            [build / "bin/octavo", *names, "--help"], capture_output=True, text=True, check=True, timeout=60
        )
        for option in (word for word in words if word.startswith("--")):
            assert option in done.stdout, f"{span}: no {option}"


def test_credits_name_what_the_build_fetches_and_the_peers() -> None:
    text = (pages.ROOT / "docs/credits.md").read_text(encoding="utf-8")
    fetched = (pages.ROOT / "cmake/OctavoDependencies.cmake").read_text(encoding="utf-8")
    repositories = re.findall(r"octavo_fetch\(\S+ (\S+/\S+) ", fetched)
    assert len(repositories) > 5
    for repository in repositories:
        assert f"https://github.com/{repository})" in text, repository
    for peer in ("bitsandbytes", "torchao", "flashoptim"):
        assert f"[{peer}](" in text
