"""Whether a command that a claim names can still be run: its script, target or test exists, and so do its
options. Nothing is run.
"""

from __future__ import annotations

import pathlib
import re
import shlex

WRAPPERS = {"taskset": 2, "nice": 2, "env": 0, "time": 0, "ncu": 2}  # and how many arguments are theirs
PYTHON = re.compile(r"(.*/)?python[\d.]*$")
BUILT_TEST = re.compile(r"build[\w-]*/tests/(\w+)$")
BUILT_COMMAND = re.compile(r"(build[\w-]*/bin/)?octavo$")


def problems(command: str, root: pathlib.Path) -> list[str]:
    """What is missing for each of the commands, joined by && or one to a line."""
    out = []
    for line in re.split(r"&&|\n", command.replace("\\\n", " ")):
        words = _words(line)
        if words:
            out += _missing(words, root)
    return out


def _words(line: str) -> list[str]:
    """Program and arguments, without variables, wrappers and comments."""
    words = shlex.split(line, comments=True)
    while words and (re.match(r"\w+=", words[0]) or words[0] in WRAPPERS):
        del words[: 1 + WRAPPERS.get(words[0], 0)]
    return words


def _missing(words: list[str], root: pathlib.Path) -> list[str]:
    program, arguments = words[0], words[1:]
    if PYTHON.match(program) and arguments:
        program, arguments = arguments[0], arguments[1:]
        if program == "-m":
            return []  # pytest and the like
    if program in ("cmake", "git", "pip") or program.endswith("/pip"):
        return []
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (root / "Makefile").read_text(), re.MULTILINE)
        return [f"make has no target {a}" for a in arguments if "=" not in a and a not in targets]
    if found := BUILT_TEST.match(program):
        lists = [path.read_text() for path in (root / "tests").rglob("CMakeLists.txt")]
        return [] if any(found[1] in text for text in lists) else [f"no test {found[1]} is built"]
    if BUILT_COMMAND.match(program):
        folders = ("apps", "cli", "benchmarks/engine", "benchmarks/speech")
        sources = [path for folder in folders for path in (root / folder).rglob("*.cc")]
        return _unknown(arguments, sources, program)
    if not (root / program).is_file():
        return [f"{program} does not exist"]
    # A script shares options with the modules beside it.
    return _unknown(arguments, [*(root / program).parent.rglob("*.py"), root / program], program)


def _unknown(arguments: list[str], sources: list[pathlib.Path], program: str) -> list[str]:
    text = "\n".join(path.read_text(errors="replace") for path in sources)
    options = [a.split("=")[0] for a in arguments if a.startswith("--")]
    return [f"{program} has no option {option}" for option in options if not _known(option, text)]


def _known(option: str, text: str) -> bool:
    """As it is written, or as the field of which a parser makes it."""
    field = option.removeprefix("--").replace("-", "_")
    return bool(re.search(rf"{re.escape(option)}(?![\w-])|\b{re.escape(field)}:", text))


def one_line(command: str) -> str:
    """To be pasted into a shell: without line ends and comments."""
    lines = [re.sub(r"\s+#.*", "", line).strip() for line in command.replace("\\\n", " ").split("\n")]
    return " ".join(" && ".join(line for line in lines if line).split())
