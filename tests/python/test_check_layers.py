"""scripts/check_layers reports an include that scripts/layers.txt does not allow, and rules with a cycle."""

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check_layers"
RULES = "# comment\nsrc/low: <hwy>\nsrc/high: src/low\nsrc/high/odd.cc: src/high <torch>\n"


def check(root: pathlib.Path, rules: str = RULES, **files: str) -> subprocess.CompletedProcess[str]:
    """Runs the script on a tree of these sources; a name's first __ is a slash, its last _ a dot."""
    (root / "scripts").mkdir(exist_ok=True)
    (root / "scripts/layers.txt").write_text(rules)
    for name, text in files.items():
        folder, _, rest = name.partition("__")
        path = root / "src" / folder / ".".join(rest.rsplit("_", 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)


def test_allowed_includes_pass(tmp_path: pathlib.Path) -> None:
    high = '#include "low/a.h"\n#include <vector>\n'
    done = check(
        tmp_path, low__a_h="#include <hwy/x.h>\n", high__b_cc=high, high__odd_cc="#include <torch/t.h>\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_forbidden_includes_are_named(tmp_path: pathlib.Path) -> None:
    files = {
        "low__a_h": '#include "high/b.h"\n',  # upwards
        "high__b_h": "#include <hwy/x.h>\n",  # another layer's third party
        "other__c_cc": "",  # a folder without a rule
    }
    done = check(tmp_path, **files)
    assert done.returncode == 1
    assert "src/low/a.h: includes high/b.h (src/high)" in done.stderr
    assert "src/high/b.h: includes hwy/x.h (<hwy>)" in done.stderr
    assert "src/other/c.cc: its folder is not in scripts/layers.txt" in done.stderr
    assert len(done.stderr.splitlines()) == 3
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert check(tmp_path).stderr == done.stderr


def test_a_file_may_be_a_layer(tmp_path: pathlib.Path) -> None:
    """A header with its own line is not a part of its folder: other layers name the file."""
    rules = "src/high:\nsrc/high/api.h: src/low\nsrc/low:\nsrc/top: src/high/api.h\n"
    files = {"high__api_h": '#include "low/a.h"\n', "low__a_h": "", "high__b_h": ""}
    assert check(tmp_path, rules, **files, top__c_cc='#include "high/api.h"\n').stderr == ""
    done = check(tmp_path, rules, **files, top__c_cc='#include "high/b.h"\n')
    assert "src/top/c.cc: includes high/b.h (src/high)" in done.stderr


def test_a_cycle_of_rules_is_named(tmp_path: pathlib.Path) -> None:
    done = check(tmp_path, "src/a: src/b\nsrc/b: src/c <torch>\nsrc/c: src/a src/c\n")
    assert done.returncode == 1
    assert done.stderr.endswith("scripts/layers.txt has a cycle: src/a -> src/b -> src/c -> src/a\n")
