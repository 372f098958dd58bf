"""scripts/check_types sees two types of one name in one namespace."""

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check_types"


def source(body: str, namespace: str = "octavo::train") -> str:
    return f"namespace {namespace} {{\n{body}\n}}  // namespace {namespace}\n"


def check(root: pathlib.Path, **files: str) -> subprocess.CompletedProcess[str]:
    """Runs the script on a tree of these sources; a name's last _ is a dot."""
    (root / "train").mkdir(exist_ok=True)
    for name, text in files.items():
        (root / "train" / ".".join(name.rsplit("_", 1))).write_text(text)
    return subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)


def test_types_of_one_name_are_named(tmp_path: pathlib.Path) -> None:
    fact = "struct Fact {\n  int value;\n};"
    done = check(tmp_path, report_h=source(fact), ranks_h=source(fact))
    assert done.returncode == 1
    assert "octavo::train::Fact is defined in train/ranks.h and in train/report.h" in done.stderr


def test_other_namespaces_and_declarations_pass(tmp_path: pathlib.Path) -> None:
    fact = "struct Fact {\n  int value;\n};"
    hidden = f"namespace {{\n{fact}\n}}  // namespace"
    done = check(
        tmp_path,
        report_h=source(fact),
        other_h=source(fact, "octavo::cli"),
        hidden_cc=source(hidden),
        declared_h=source("struct Fact;"),
        nested_cc=source("struct Fact::State {\n};\nstruct Fact<int> {\n};"),
    )
    assert (done.returncode, done.stderr) == (0, "")
