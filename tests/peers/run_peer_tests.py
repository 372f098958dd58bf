"""The peers' own optimizer tests, with octavo.optim in place of their optimizers.

    make peers                                                   # both suites on the CPU
    python tests/peers/run_peer_tests.py --all --device cuda --record

Their test files come from their repositories (suites.py) and are copied, unchanged, into a temporary
directory, in a package whose __init__.py is ours and makes the replacement (replacements.py) before their
code runs, in whichever process. applicable.json lists the cases that apply to a drop-in. results.json has
what came of them, and docs/compatibility.md the tables made of that: a run that gives anything else fails.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from typing import Any

import results
from suites import HERE, SUITES, check, checkout

PACKAGE = HERE.parents[1] / "adapters/python"
DISTRIBUTIONS = ("torch", "torchao", "bitsandbytes", "pytest")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs the peers' optimizer tests against octavo.optim.")
    parser.add_argument("--all", action="store_true", help="both suites; fetched where no checkout is named")
    for peer in SUITES:
        parser.add_argument(f"--{peer}", type=pathlib.Path, metavar="CHECKOUT", help=f"checkout of {peer}")
    parser.add_argument("--device", choices=results.DEVICES, default="cpu", help="whose cases to run")
    parser.add_argument("--theirs", action="store_true", help="replace nothing: the same cases on their own")
    parser.add_argument("-k", metavar="EXPRESSION", help="only these of the cases, as pytest's -k")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="where to write every case")
    parser.add_argument("--record", action="store_true", help="keep the results, and make the tables again")
    parser.add_argument("--commit", help="what --record says was run, in a tree without git's history")
    options = parser.parse_args()
    for peer in SUITES:
        if options.all and not getattr(options, peer):
            setattr(options, peer, checkout(peer))
    chosen = [peer for peer in SUITES if getattr(options, peer)]
    if not chosen:
        parser.error("name a suite: --all, --torchao CHECKOUT or --bitsandbytes CHECKOUT")
    if options.record and (options.theirs or options.k or len(chosen) < len(SUITES)):
        parser.error("--record keeps whole runs of both suites: leave out --theirs and -k, give --all")
    return options


def prepare(peer: str, folder: pathlib.Path, directory: pathlib.Path, theirs: bool) -> None:
    suite = SUITES[peer]
    package = directory / suite["package"]
    package.mkdir(parents=True)
    for name in suite["files"]:
        shutil.copy(folder / name, package)
    code = "" if theirs else f"import replacements\n\nreplacements.replace_{peer}()\n"
    (package / "__init__.py").write_text(code)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n    benchmark: bitsandbytes'\n")


def environment(device: str) -> dict[str, str]:
    paths = [str(HERE)]
    if importlib.util.find_spec("octavo") is None:
        paths.append(str(PACKAGE))
    # pytest runs in another directory.
    paths += [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    out = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    if library := os.environ.get("OCTAVO_LIBRARY"):
        out["OCTAVO_LIBRARY"] = os.path.abspath(library)
    out["BNB_TEST_DEVICE"] = device  # bitsandbytes' own switch; torchao's cases are chosen by their ids
    return out


def run(peer: str, options: argparse.Namespace) -> dict[str, Any]:
    folder: pathlib.Path = getattr(options, peer)
    check(peer, folder)
    with tempfile.TemporaryDirectory(prefix=f"octavo-{peer}-") as name:
        directory = pathlib.Path(name)
        prepare(peer, folder, directory, options.theirs)
        report = directory / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += ["-p", "peer_cases", "--peer", peer, "--peer-report", str(report)]
        command += ["--peer-device", options.device, "-c", "pytest.ini", "--rootdir", "."]
        command += ["--peer-theirs"] if options.theirs else []
        command += ["-k", options.k] if options.k else []
        subprocess.run(
            [*command, SUITES[peer]["package"]], cwd=directory, env=environment(options.device), check=False
        )
        if not report.exists():
            raise SystemExit(f"{peer}: pytest ended before it had a report (its output is above)")
        result: dict[str, Any] = json.loads(report.read_text())
    return result


def show(peer: str, result: dict[str, Any]) -> None:
    print(f"\n{peer}")
    for name, counts in results.rows(peer, result["cases"]).items():
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


def about(device: str, head: str | None) -> dict[str, Any]:
    """What a record says of the run it comes from."""
    if head is None:
        git = ["git", "-C", str(HERE), "rev-parse", "--short=9", "HEAD"]
        head = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    machine, command = "an x86-64 CPU", "make peers"
    if device == "cuda":
        machine = importlib.import_module("torch").cuda.get_device_name()
        command = "python tests/peers/run_peer_tests.py --all --device cuda --record"
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {
        "date": date, "commit": head, "machine": machine, "command": command, "versions": versions()
    }  # fmt: skip


def differs(device: str, found: dict[str, Any]) -> list[str]:
    """The rows that are not as recorded."""
    kept = results.load().get(device, {})
    return [
        f"{peer}, {row}: {counts}, recorded {kept.get(peer, {}).get(row)}"
        for peer, rows in found.items()
        for row, counts in rows.items()
        if counts != kept.get(peer, {}).get(row)
    ]


def main() -> int:
    options = arguments()
    reports = {peer: run(peer, options) for peer in SUITES if getattr(options, peer)}
    for peer, report in reports.items():
        show(peer, report)
    if options.json:
        options.json.write_text(json.dumps({"versions": versions(), **reports}, indent=1) + "\n")
    cases = [found for report in reports.values() for found in report["cases"].values()]
    counts = Counter(found["outcome"] for found in cases)
    unknown = sum(len(report["unlisted"]) + len(report["missing"]) for report in reports.values())
    print(
        f"\n{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped by the suites"
    )
    if unknown or not counts["passed"]:
        return 1
    if options.theirs or options.k:
        return 1 if counts["failed"] else 0
    found = {peer: results.rows(peer, report["cases"]) for peer, report in reports.items()}
    if options.record:
        results.record(options.device, about(options.device, options.commit), found)
    changed = differs(options.device, found)
    for line in changed:
        print(f"not as in tests/peers/results.json: {line} (--record keeps the new result)")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
