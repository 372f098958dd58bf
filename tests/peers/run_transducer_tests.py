"""transformers' own tests of its transducer losses, with octavo.nn's in their place.

    make peers                                                              # among the others
    python tests/peers/run_transducer_tests.py --transformers CHECKOUT      # a checkout of your own

TDTLossTest and RNNTLossTest come unchanged from transformers' repository at the commit below; only their
expected numbers and the file that has them are fetched. What else that file tests is not looked at: the
modules that it imports for it are empty here. transformers must be installed. RNNTLossTest asks for
torchaudio, which transformers' loss calls and ours does not: it runs without.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from run_peer_tests import environment
from suites import FOLDER

REPOSITORY = "https://github.com/huggingface/transformers"
COMMIT = "d56c55bf564ddb176759eb6ec199442682564916"
CASES = "TDTLossTest or RNNTLossTest"
EXPECTED = 12  # as many cases as both have at that commit
TEST = "tests/models/parakeet/test_modeling_parakeet.py"
FILES = (
    TEST,
    "tests/fixtures/parakeet/expected_tdt_loss.json",
    "tests/fixtures/parakeet/expected_rnnt_loss.json",
)
EMPTY = """
class ConfigTester: pass
class ModelTesterMixin: pass
floats_tensor = ids_tensor = random_attention_mask = None
"""
REPLACE = """
import octavo.nn
import transformers.testing_utils
from transformers.loss import loss_rnnt, loss_tdt

loss_tdt.tdt_loss, loss_rnnt.rnnt_loss = octavo.nn.tdt_loss, octavo.nn.rnnt_loss
transformers.testing_utils.require_torchaudio = lambda case: case
"""


def checkout() -> pathlib.Path:
    """build/peers/transformers with the files of the commit, fetched where they are not there."""
    folder = FOLDER / "transformers"
    if all((folder / name).exists() for name in FILES):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for command in (
        ["init", "-q"],
        ["fetch", "-q", "--depth", "1", "--filter=blob:none", REPOSITORY, COMMIT],
        ["checkout", "-q", "FETCH_HEAD", "--", *FILES],
    ):
        if subprocess.run(["git", "-C", str(folder), *command], check=False).returncode != 0:
            where = f"{REPOSITORY} at {COMMIT} into {folder}"
            raise SystemExit(f"cannot fetch {where}: without a network, name a checkout with --transformers")
    return folder


def prepare(folder: pathlib.Path, directory: pathlib.Path, theirs: bool) -> None:
    for name in FILES:
        if not (folder / name).exists():
            raise SystemExit(f"{folder / name} does not exist: expected a checkout of transformers")
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / name, directory / name)
    (directory / "tests/__init__.py").write_text("" if theirs else REPLACE)
    for name in ("test_configuration_common", "test_modeling_common"):
        (directory / f"tests/{name}.py").write_text(EMPTY)
    for name in ("models", "models/parakeet"):
        (directory / f"tests/{name}/__init__.py").write_text("")
    (directory / "pytest.ini").write_text("[pytest]\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Runs transformers' tests of transducer losses on octavo.nn."
    )
    parser.add_argument(
        "--transformers", type=pathlib.Path, metavar="CHECKOUT", help="fetched where not named"
    )
    parser.add_argument("--theirs", action="store_true", help="replace nothing: the same cases on their own")
    options = parser.parse_args()
    if importlib.util.find_spec("transformers") is None:
        raise SystemExit(f"transformers is not installed for {sys.executable}: pip install transformers")
    with tempfile.TemporaryDirectory(prefix="octavo-transformers-") as name:
        directory = pathlib.Path(name)
        prepare(options.transformers or checkout(), directory, options.theirs)
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-k", CASES]
        done = subprocess.run(
            [*command, "-c", "pytest.ini", "--rootdir", ".", TEST],
            cwd=directory,
            env=environment("cpu"),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    print(done.stdout, end="")
    passed = re.search(r"(\d+) passed", done.stdout)
    if done.returncode == 0 and not options.theirs and (passed is None or int(passed[1]) != EXPECTED):
        print(f"expected {EXPECTED} cases to pass: the file is not the one of {COMMIT[:9]}")
        return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
