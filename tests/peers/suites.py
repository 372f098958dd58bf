"""Where the peers' test suites come from: their repositories at the commits that applicable.json names, under
build/peers. Nothing of them enters this repository.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "build/peers"

# Per peer: its repository, the package that its tests are put into, the files, and what they import.
SUITES: dict[str, dict[str, Any]] = {
    "torchao": {
        "repository": "https://github.com/pytorch/ao",
        "package": "peer_torchao",
        "files": ("test/conftest.py", "test/test_low_bit_optim.py"),
        "needs": ("torchao", "expecttest"),
    },
    "bitsandbytes": {
        "repository": "https://github.com/bitsandbytes-foundation/bitsandbytes",
        "package": "tests",  # its files import one another by this name
        "files": ("tests/conftest.py", "tests/helpers.py", "tests/test_optim.py"),
        "needs": ("bitsandbytes", "lion_pytorch"),
    },
}


def commit(peer: str) -> str:
    """The commit whose cases applicable.json lists."""
    listed = json.loads((HERE / "applicable.json").read_text())
    return str(listed[peer]["commit"])


def checkout(peer: str) -> pathlib.Path:
    """build/peers/<peer> at the listed commit, fetched where it is not there."""
    folder = FOLDER / peer
    git = ["git", "-C", str(folder)]
    if not (folder / ".git").exists() or _head(git) != commit(peer):
        folder.mkdir(parents=True, exist_ok=True)
        fetch = ["fetch", "-q", "--depth", "1", SUITES[peer]["repository"], commit(peer)]
        for command in (["init", "-q"], fetch, ["checkout", "-q", "FETCH_HEAD"]):
            if subprocess.run([*git, *command], check=False).returncode != 0:
                where = f"{SUITES[peer]['repository']} at {commit(peer)} into {folder}"
                raise SystemExit(f"cannot fetch {where}: without a network, name a checkout with --{peer}")
    return folder


def _head(git: list[str]) -> str:
    done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def check(peer: str, folder: pathlib.Path) -> None:
    """Ends with what is missing, and how to get it."""
    for name in SUITES[peer]["files"]:
        if not (folder / name).exists():
            raise SystemExit(f"{folder / name} does not exist: expected a checkout of {peer}'s repository")
    for module in (*SUITES[peer]["needs"], "pytest"):
        if importlib.util.find_spec(module) is None:
            needs = "pip install --no-deps -r requirements-peers.txt"
            raise SystemExit(f"{module} is not installed for {sys.executable}: scripts/bootstrap, or {needs}")
