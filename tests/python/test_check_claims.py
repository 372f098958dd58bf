"""scripts/check_claims on small trees: what counts as a claim, which marks hold, and what git has to know."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from types import ModuleType

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOOD = "claim: measured 2026-01-02 at {commit} on a CPU; run: python bench/run.py --size 3; covers: src"


def load() -> ModuleType:
    loader = SourceFileLoader("check_claims", str(ROOT / "scripts/check_claims"))
    spec = importlib.util.spec_from_loader("check_claims", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


script = load()


def git(folder: pathlib.Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def existed(path: str, commit: str) -> bool:
    """Returns True if the file was in the tree at the commit, maybe under a former name."""
    first = git(ROOT, "log", "--follow", "--format=%H", "--", path).split()[-1]
    is_ancestor = ["git", "merge-base", "--is-ancestor", first, commit]
    return subprocess.run(is_ancestor, cwd=ROOT, check=False).returncode == 0


def test_a_script_that_a_commit_lacks_was_outside_the_tree() -> None:
    """A claim that covers a benchmark which did not exist at its commit says who measured it."""
    history = script.marks.History(ROOT)
    if not history.known or history.shallow:
        pytest.skip("this tree has no complete git history")
    missing = []
    for mark in script.blocks.MARK.finditer((ROOT / "benchmarks/records/2026-11-18/README.md").read_text()):
        found = re.match(r"measured \S+ at (\w+).*?; covers: ([^;]*)", mark[2], re.DOTALL)
        for path in found[2].split() if found else ():
            if path.startswith("benchmarks/") and not existed(path, found[1]):
                missing.append(path)
                assert "; by a script outside the tree" in mark[2], (path, found[1])
    assert "benchmarks/llama.py" in missing


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A repository of two commits; the second changes src/."""
    root = tmp_path_factory.mktemp("project")
    files = {
        "Makefile": "peers: ## x\n\techo\n",
        "bench/run.py": 'parser.add_argument("--size")\n',
        "bench/settings.py": "class Settings:\n    eval_steps: int = 3\n",
        "src/code.cc": "1\n",
        "apps/main.cc": '"--device"\n',
        "tests/CMakeLists.txt": "octavo_add_test(long_test)\n",
        "tests/test_a.py": "def test_one() -> None: ...\n",
        "tests/b_test.cc": "TEST(Suite, Name) {}\n",
        "docs/other.md": "# Other\n\n## Long horizon\n\n| | ms |\n|---|---|\n| a | 1.813 |\n| b | 41,400 |\n",
        "README.md": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one", "--date", "2026-01-01T00:00:00")
    (root / "src/code.cc").write_text("2\n")
    git(root, "commit", "-qam", "two", "--date", "2026-01-03T00:00:00")
    return root


def check(root: pathlib.Path, text: str) -> script.marks.Findings:
    """The findings of a README."""
    (root / "README.md").write_text(text)
    found, _ = script.check(root)
    found.errors = [error for error in found.errors if error.startswith("README.md")]
    return found


def first(root: pathlib.Path) -> str:
    return git(root, "rev-list", "--max-parents=0", "HEAD")[:9]


def marked(root: pathlib.Path, mark: str = GOOD) -> str:
    return f"# Page\n\n<!-- {mark.format(commit=first(root))} -->\nIt takes 3.5 ms.\n"


CLAIMS = {
    "a time": "A step takes 1.8 ms.",
    "memory": "It trains in 14.4 GB.",
    "tokens": "- 41,400 tokens/s",
    "a share": "82% of a copy.",
    "a ratio": "**20 and 33 times faster** than that.",
    "a ratio of times": "on a GPU it takes 7.6 to 8.7 times that",
    "half of it": "it runs at half the speed of torch's",
    "bytes": "1.07 bytes of state per parameter",
    "a cosine": "the cosine with float64 is 0.88",
    "cases": "72 passed, 40 skipped",
    "a table": "| a | ms |\n|---|---|\n| x | 1.5 |\n| y | 2.25 / 3 |",
    "a table of small numbers": "| a | b |\n|---|---|\n| x | 3e-8 |\n| y | 2e-13 |",
    "a table with units": "| a | b |\n|---|---|\n| x | 12 passed |\n| y | 3 passed |",
}
NO_CLAIMS = {
    "a learning rate": "lr 1e-3 with a cosine to zero, weight decay 0.1",
    "code": "```\nsleep 5 s  # 80%\n```",
    "inline code": "Set `--limit 4 ms`.",
    "a buffer": "arrays of 4 KiB, at most 1 MiB",
    "counts": "646 tensors in 3 files, 8-bit states",
    "a table of words": "| a | b |\n|---|---|\n| x | 1 to 4 |\n| y | default 256 |",
    "a comment in code": "```\n<!-- claim: nothing -->\n```\n\nSee `<!-- claim: x -->`.",
    "a reason": "<!-- not a claim: a definition -->\n5% of nothing",
}


@pytest.mark.parametrize("name", CLAIMS)
def test_figures_need_a_mark(project: pathlib.Path, name: str) -> None:
    found = check(project, CLAIMS[name] + "\n")
    assert len(found.errors) == 1, found.errors
    assert "has no mark" in found.errors[0]
    test = "<!-- claim: test tests/test_a.py::test_one -->\n"
    assert check(project, test + CLAIMS[name] + "\n").errors == []


@pytest.mark.parametrize("name", NO_CLAIMS)
def test_other_numbers_do_not(project: pathlib.Path, name: str) -> None:
    assert check(project, NO_CLAIMS[name] + "\n").errors == []


def test_a_good_claim_is_listed_when_its_code_has_changed(project: pathlib.Path) -> None:
    found = check(project, marked(project))
    assert found.errors == found.unchecked == []
    assert len(found.outdated) == 1
    assert "run: python bench/run.py --size 3" in found.outdated[0]
    now = GOOD.replace("{commit}", git(project, "rev-parse", "--short", "HEAD"))
    assert check(project, marked(project, now)).outdated == []
    assert check(project, marked(project, GOOD.replace("covers: src", "covers: bench"))).outdated == []


BAD = {
    "is no date": GOOD.replace("2026-01-02", "yesterday"),
    "in the future": GOOD.replace("2026-01-02", "2199-01-02"),
    "commit abcdef012 does not exist": GOOD.replace("{commit}", "abcdef012"),
    "expected 'measured <date> at <commit>": GOOD.replace(" at {commit}", ""),
    "no command": GOOD.replace("; run: python bench/run.py --size 3", ""),
    "bench/gone.py does not exist": GOOD.replace("run.py", "gone.py"),
    "has no option --sizes": GOOD.replace("--size", "--sizes"),
    "make has no target pears": GOOD.replace("python bench/run.py --size 3", "make pears"),
    "no test short_test is built": GOOD.replace("python bench/run.py --size 3", "build/tests/short_test"),
    "octavo has no option --devise": GOOD.replace("python bench/run.py --size 3", "octavo bench --devise x"),
    "add '; covers": GOOD.replace("; covers: src", ""),
    "covers sources, which does not exist": GOOD.replace("covers: src", "covers: sources"),
    "tests/test_a.py has no test test_two": "claim: test tests/test_a.py::test_two",
    "tests/b_test.cc has no test Suite.Other": "claim: test tests/b_test.cc::Suite.Other",
    "tests/gone.py does not exist": "claim: test tests/gone.py::test_one",
    "docs/other.md has no heading #gone": "claim: see docs/other.md#gone",
    "docs/other.md is a complete page": "claim: see docs/other.md",
    "3.5 is not in docs/other.md#long-horizon": "claim: see docs/other.md#long-horizon",
    "expected measured …": "claim: everybody knows",
    "says no reason": "not a claim:",
}


@pytest.mark.parametrize("message", BAD)
def test_bad_marks_fail(project: pathlib.Path, message: str) -> None:
    errors = check(project, marked(project, BAD[message])).errors
    assert len(errors) == 1, errors
    assert message in errors[0]


@pytest.mark.parametrize(
    "command",
    ["make peers", "OMP=1 taskset -c 1 python3 bench/run.py --size=3 && make peers", "build/tests/long_test",
     "build-cuda/bin/octavo bench --device cuda", "python bench/run.py --eval-steps 3"],
)  # fmt: skip
def test_commands_that_exist(project: pathlib.Path, command: str) -> None:
    good = GOOD.replace("python bench/run.py --size 3", command)
    assert check(project, marked(project, good)).errors == []


def test_the_command_of_a_section_is_its_code(project: pathlib.Path) -> None:
    mark = f"<!-- claims of this section: {GOOD.format(commit=first(project)).removeprefix('claim: ')} -->"
    for run, code in (("below", "python bench/run.py \\\n  --size 3"), ("below", "make peers  # both")):
        text = mark.replace("python bench/run.py --size 3", run)
        page = f"# A\n\n{text}\n\n```\n{code}\n```\n\n1.5 ms\n\n- 2.5 ms\n"
        assert check(project, page).errors == []
        assert check(project, page.replace("run.py", "gone.py").replace("peers", "pears")).errors != []
        after = check(project, page + "\n## Next\n\n3.5 ms\n").errors  # a section ends at a heading
        assert len(after) == 1
        assert "3.5 ms" in after[0]


def test_a_mark_after_its_block_is_an_error(project: pathlib.Path) -> None:
    mark = "<!-- claim: test tests/test_a.py::test_one -->"
    errors = check(project, f"It takes 1.5 ms.\n\n{mark}\n\n## Next\n").errors
    assert ["has no mark" in errors[0], "not before a heading" in errors[1]] == [True, True]


def test_figures_repeated_from_another_page(project: pathlib.Path) -> None:
    see = "<!-- claim: see docs/other.md#long-horizon -->"
    assert check(project, f"- It takes 1.8 ms, at 41,400 tokens/s. {see}\n").errors == []
    errors = check(project, f"- It takes 1.9 ms. {see}\n").errors
    assert len(errors) == 1
    assert "1.9 is not in" in errors[0]


MEASURED = """# Runs

## Steps

<!-- {mark} -->
| | ms | GB |
|---|---|---|
| a | 140.2 | 23.8 |

It has 7 layers and 5 rows.

## Words

<!-- {other} -->
It makes 229 clips/s, 20 and 33 times the rate of the peers, in 18 GB.

```
bench --clips 64 --gigabytes 999.5
```
"""


@pytest.fixture
def runs(project: pathlib.Path) -> Iterator[pathlib.Path]:
    """The project with a page of two sections. The code of the first has changed since its run."""
    mark = GOOD.format(commit=first(project))
    other = mark.replace("covers: src", "covers: bench")
    (project / "docs/runs.md").write_text(MEASURED.format(mark=mark, other=other))
    yield project
    (project / "docs/runs.md").unlink()


WHOLE = {
    "a rate": ("228 clips/s", "229 clips/s"),
    "memory": ("in 19 GB", "in 18 GB"),
    "times": ("21 and 33 times as fast", "20 and 33 times as fast"),
    "both ends of a range": ("20 to 32 times", "20 to 33 times"),
    "a number of a command": ("999.5 GB", "18 GB"),
    "in bold": ("**17 GB**", "**18 GB**"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_with_a_unit_are_compared(runs: pathlib.Path, name: str) -> None:
    wrong, right = WHOLE[name]
    see = "<!-- claim: see docs/runs.md#words -->"
    assert check(runs, f"It makes {right} with 3 seeds. {see}\n").errors == []
    errors = check(runs, f"It makes {wrong} with 3 seeds. {see}\n").errors
    assert len(errors) == 1, errors
    assert "is not in docs/runs.md#words" in errors[0]


def test_whole_numbers_of_cells_are_compared(runs: pathlib.Path) -> None:
    table = "<!-- claim: see docs/runs.md#steps -->\n| | ms | GB |\n|---|---|---|\n| 8 | 140 | 24 (a run) |\n"
    assert check(runs, table).errors == []
    errors = check(runs, table.replace("140", "141").replace("24 (", "25 (")).errors
    assert ["141 is not in" in errors[0], "25 is not in" in errors[1]] == [True, True]


def test_figures_of_several_sections(runs: pathlib.Path) -> None:
    text = "It takes 140 ms and makes 229 clips/s. <!-- claim: see docs/runs.md#steps{} -->\n"
    assert check(runs, text.format(", docs/runs.md#words")).errors == []
    assert len(check(runs, text.format("")).errors) == 1


def test_one_column_repeats_another_page(runs: pathlib.Path) -> None:
    now = GOOD.replace("{commit}", git(runs, "rev-parse", "--short", "HEAD"))
    marks = f"<!-- {now} -->\n<!-- claim: see docs/runs.md#steps; column: step -->\n"
    page = marks + "| | GB | step, ms |\n|---|---|---|\n| a | 77 | 140 |\n"
    assert check(runs, page).errors == []
    assert len(check(runs, page.replace("140", "150")).errors) == 1
    assert (
        "no column that begins with 'steps'"
        in check(runs, page.replace("column: step", "column: steps")).errors[0]
    )


def test_a_repeated_figure_is_as_old_as_its_run(runs: pathlib.Path) -> None:
    old = check(runs, "It takes 140 ms. <!-- claim: see docs/runs.md#steps -->\n")
    assert [claim for claim in old.outdated if claim.startswith("README.md:1:")] != []
    fresh = check(runs, "It makes 229 clips/s. <!-- claim: see docs/runs.md#words -->\n")
    assert [claim for claim in fresh.outdated if claim.startswith("README.md")] == []
    both = "It makes 229 clips/s. <!-- claim: see docs/runs.md#words, docs/runs.md#steps -->\n"
    assert [claim for claim in check(runs, both).outdated if claim.startswith("README.md")] == []


def test_a_date_next_to_a_repeated_figure_is_that_of_its_run(runs: pathlib.Path) -> None:
    text = f"It takes 140 ms (2026-01-02, at {first(runs)}). <!-- claim: see docs/runs.md#steps -->\n"
    assert check(runs, text).errors == []
    for wrong in (text.replace("01-02", "01-03"), text.replace(first(runs), "abcdef0")):
        errors = check(runs, wrong).errors
        assert len(errors) == 1, errors
        assert "no run of these figures is of 2026-01-0" in errors[0]


def test_a_figure_repeated_twice_is_as_old_as_its_run(runs: pathlib.Path) -> None:
    (runs / "docs/again.md").write_text(
        "# Again\n\nIt takes 140 ms. <!-- claim: see docs/runs.md#steps -->\n"
    )
    found = check(runs, "It takes 140 ms. <!-- claim: see docs/again.md#again -->\n")
    assert found.errors == []
    assert [claim for claim in found.outdated if claim.startswith("README.md:1: 2026-01-02")] != []
    (runs / "docs/again.md").unlink()


def test_without_a_history(project: pathlib.Path, tmp_path: pathlib.Path) -> None:
    text = marked(project)
    export = tmp_path / "export"
    subprocess.run(["cp", "-r", str(project), str(export)], check=True)
    subprocess.run(["rm", "-rf", str(export / ".git")], check=True)
    found = check(export, text)
    assert found.errors == []
    assert ["no git history" in reason for reason in found.unchecked] == [True]
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{project}", str(shallow))
    found = check(shallow, text)
    assert found.errors == []
    assert ["shallow" in reason for reason in found.unchecked] == [True]


def test_a_history_that_was_written_anew(project: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Squashed into one later commit: not checked. A commit of another branch: an error."""
    text = marked(project)
    squashed = tmp_path / "squashed"
    subprocess.run(["cp", "-r", str(project), str(squashed)], check=True)
    subprocess.run(["rm", "-rf", str(squashed / ".git")], check=True)
    git(squashed, "init", "-q")
    git(squashed, "add", ".")
    git(squashed, "commit", "-qm", "all", "--date", "2026-02-01T00:00:00")
    found = check(squashed, text)
    assert found.errors == []
    assert ["older than this history" in reason for reason in found.unchecked] == [True]
    tree = git(project, "rev-parse", "HEAD^{tree}")
    beside = git(project, "commit-tree", tree, "-m", "beside")[:9]
    errors = check(project, marked(project, GOOD.replace("{commit}", beside))).errors
    assert len(errors) == 1
    assert "not in the history of HEAD" in errors[0]


def test_the_command_line(project: pathlib.Path) -> None:
    (project / "README.md").write_text("It takes 3.5 ms.\n")
    run = [sys.executable, str(ROOT / "scripts/check_claims"), "--root", str(project)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "README.md:1: '3.5 ms' has no mark" in done.stderr
    assert "check_claims: 0 marked" in done.stdout
