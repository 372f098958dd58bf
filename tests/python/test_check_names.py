"""scripts/check_names sees an algorithm that is named outside its formula, and a list that has gone stale."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check_names"
FORMULAS = {
    "src/formula/mirage.h": 'AlgorithmInfo kNames[] = {{Algorithm::mirage, "mirage", "Mirage", kOptions}};\n',
    "src/formula/oasis.h": 'AlgorithmInfo kNames[] = {{.number = Algorithm::oasis, .name = "oasis"}};\n',
    "src/formula/shared.h": "struct Common {};\n",
}


def check(root: pathlib.Path, allowed: str = "", **files: str) -> tuple[int, list[str]]:
    """Runs the script on a tree; in a name __ is a slash and the last _ a dot."""
    named = {".".join(name.replace("__", "/").rsplit("_", 1)): text for name, text in files.items()}
    for name, text in {**FORMULAS, **named, "scripts/names.txt": allowed}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def test_a_tree_that_asks_its_descriptions_passes(tmp_path: pathlib.Path) -> None:
    files = {
        "src__core__builtin_registry_h": '#include "formula/mirage.h"\n',
        "adapters__python__ask_py": "miraged = oasised = 'amirage'\n",  # other words
        "train__notes_md": "mirage\n",  # no source
        "tests__oasis_py": "mirage\n",  # another folder
    }
    assert check(tmp_path, "src/core/builtin_registry.h  # the list\n", **files) == (0, [])


@pytest.mark.parametrize(
    "line",
    ["mirage", '"mirage"', "Mirage8bit", "kMirage", "make_mirage()", "PagedMirage", "MirageOptions", "OASIS",
     "isOasis", "amsgrad"],
)  # fmt: skip
def test_a_name_is_seen_in_every_form(line: str, tmp_path: pathlib.Path) -> None:
    code, found = check(tmp_path, train__run_cc=f"\n{line}\n{line}\n")
    assert code == 1
    assert found == ["check_names: train/run.cc:2: names an algorithm (2 lines); ask its description"]


def test_the_list_of_exceptions_stays_true(tmp_path: pathlib.Path) -> None:
    code, found = check(tmp_path, "apps/clean.cc\napps/gone.cc\n", apps__clean_cc="int x;\n")
    assert code == 1
    assert found == [
        "check_names: apps/clean.cc: names no algorithm any more; take it off scripts/names.txt",
        "check_names: apps/gone.cc: is on scripts/names.txt and does not exist",
    ]


def test_a_clone_and_a_copy_agree(tmp_path: pathlib.Path) -> None:
    found = check(tmp_path, src__x_h="Mirage\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert check(tmp_path) == found
    (tmp_path / ".gitignore").write_text("src/x.h\n")  # made by a build
    assert check(tmp_path) == (0, [])


def test_a_description_that_cannot_be_read_is_an_error(tmp_path: pathlib.Path) -> None:
    code, found = check(tmp_path, src__formula__odd_h="AlgorithmInfo kNames[] = {make_info()};\n")
    assert (code, found) == (
        1,
        ["check_names: src/formula/odd.h: has kNames, but no name was read in it"],
    )
    for name in ("mirage.h", "oasis.h", "odd.h"):
        (tmp_path / "src/formula" / name).write_text("")
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True)
    assert "no description was found" in done.stderr
