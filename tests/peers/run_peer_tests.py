"""The peers' own optimizer tests, with octavo.optim in place of their optimizers.

    python tests/peers/run_peer_tests.py --torchao ../ao --bitsandbytes ../bitsandbytes

Their test files come from checkouts of their repositories and are copied, unchanged, into a temporary
directory, in a package whose __init__.py is ours and makes the replacement (replacements.py) before their
code runs, in whichever process. applicable.json lists the cases that apply to a drop-in, and
docs/compatibility.md has the results. Needs pytest, the peers themselves (bitsandbytes with its library for
the device), and what their files import: expecttest for torchao's, lion-pytorch for bitsandbytes'.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "adapters/python"

# Per peer: the package that its tests are put into, the files, the test file, and what must be installed.
SUITES: dict[str, dict[str, Any]] = {
    "torchao": {
        "package": "peer_torchao",
        "files": ("test/conftest.py", "test/test_low_bit_optim.py"),
        "needs": {"torchao": "torchao", "expecttest": "expecttest"},
    },
    "bitsandbytes": {
        "package": "tests",  # its files import one another by this name
        "files": ("tests/conftest.py", "tests/helpers.py", "tests/test_optim.py"),
        "needs": {"bitsandbytes": "bitsandbytes", "lion_pytorch": "lion-pytorch"},
    },
}
DISTRIBUTIONS = ("torch", "torchao", "bitsandbytes", "lion-pytorch", "pytest")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs the peers' optimizer tests against octavo.optim.")
    for peer in SUITES:
        parser.add_argument(f"--{peer}", type=pathlib.Path, metavar="CHECKOUT", help=f"checkout of {peer}")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cases of this device (default: all)")
    parser.add_argument("--theirs", action="store_true", help="replace nothing: the same cases on their own")
    parser.add_argument("-k", metavar="EXPRESSION", help="only these of the cases, as pytest's -k")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="where to write the results")
    options = parser.parse_args()
    if not any(getattr(options, peer) for peer in SUITES):
        parser.error("name at least one checkout: --torchao, --bitsandbytes")
    return options


def check(peer: str, checkout: pathlib.Path) -> None:
    """Ends with what is missing, and how to get it."""
    for name in SUITES[peer]["files"]:
        if not (checkout / name).exists():
            raise SystemExit(f"{checkout / name} does not exist: expected a checkout of {peer}'s repository")
    for module, distribution in {**SUITES[peer]["needs"], "pytest": "pytest"}.items():
        if importlib.util.find_spec(module) is None:
            raise SystemExit(f"{module} is not installed: pip install --no-deps {distribution}")


def prepare(peer: str, checkout: pathlib.Path, directory: pathlib.Path, theirs: bool) -> None:
    suite = SUITES[peer]
    package = directory / suite["package"]
    package.mkdir(parents=True)
    for name in suite["files"]:
        shutil.copy(checkout / name, package)
    code = "" if theirs else f"import replacements\n\nreplacements.replace_{peer}()\n"
    (package / "__init__.py").write_text(code)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n    benchmark: bitsandbytes'\n")


def environment(device: str | None) -> dict[str, str]:
    paths = [str(HERE)]
    if importlib.util.find_spec("octavo") is None:
        paths.append(str(PACKAGE))
    # pytest runs in another directory.
    paths += [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    out = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    if library := os.environ.get("OCTAVO_LIBRARY"):
        out["OCTAVO_LIBRARY"] = os.path.abspath(library)
    if device:
        out["BNB_TEST_DEVICE"] = device  # bitsandbytes' own switch; torchao's cases are chosen by their ids
    return out


def run(peer: str, options: argparse.Namespace) -> dict[str, Any]:
    checkout: pathlib.Path = getattr(options, peer)
    check(peer, checkout)
    with tempfile.TemporaryDirectory(prefix=f"octavo-{peer}-") as name:
        directory = pathlib.Path(name)
        prepare(peer, checkout, directory, options.theirs)
        report = directory / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += ["-p", "peer_cases", "--peer", peer, "--peer-report", str(report)]
        command += ["--peer-device", options.device or "any", "-c", "pytest.ini", "--rootdir", "."]
        command += ["--peer-theirs"] if options.theirs else []
        command += ["-k", options.k] if options.k else []
        subprocess.run(
            [*command, SUITES[peer]["package"]], cwd=directory, env=environment(options.device), check=False
        )
        if not report.exists():
            raise SystemExit(f"{peer}: pytest ended before it had a report (its output is above)")
        result: dict[str, Any] = json.loads(report.read_text())
    return result


def function(case: str) -> str:
    """The test function of an id: torch's parametrize appends to its name, pytest's adds brackets."""
    names = re.split(r"\[|_optim_name_|_device_|_offload_grad_|_subclass\d", case)[0]
    return names.removeprefix("TestOptim::")


def show(peer: str, result: dict[str, Any]) -> None:
    print(f"\n{peer}")
    rows: dict[str, Counter[str]] = {}
    for case, found in result["cases"].items():
        rows.setdefault(function(case), Counter())[found["outcome"]] += 1
    for name, counts in rows.items():
        print(f"  {name:48} " + ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items())))
    skips = Counter(found["why"] for found in result["cases"].values() if found["outcome"] == "skipped")
    for why, number in skips.items():
        print(f"  {number} skipped by the suite: {why or 'no reason given'}")
    for reason, cases in result["not_applicable"].items():
        print(f"  {len(cases)} not applicable: {reason}")
    for case, found in result["cases"].items():
        if found["outcome"] == "failed":
            print(f"  FAILED {case}\n         {found['why']}")
    for title in ("unlisted", "missing"):
        for case in result[title]:
            print(f"  {title} in applicable.json or in the checkout: {case}")


def versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed as a distribution"
    return found


def main() -> int:
    options = arguments()
    results = {peer: run(peer, options) for peer in SUITES if getattr(options, peer)}
    for peer, result in results.items():
        show(peer, result)
    if options.json:
        options.json.write_text(json.dumps({"versions": versions(), **results}, indent=1) + "\n")
    cases = [found for result in results.values() for found in result["cases"].values()]
    counts = Counter(found["outcome"] for found in cases)
    unknown = sum(len(result["unlisted"]) + len(result["missing"]) for result in results.values())
    print(
        f"\n{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped by the suites"
    )
    return 1 if counts["failed"] or unknown or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
