"""Runs AdamW on one GPU with the kernels of other architectures: compares the bits, and times them.

A build with OCTAVO_CUDA_AS contains, next to its own library, one library for each of these architectures.
Its kernels use the stages, tables, conversions and shared memory of that architecture
(cmake/OctavoCudaAs.cmake). `octavo bench optimizer` runs with each of them preloaded, and the checksums must
equal those of the build's own library. The times are those of the local GPU, not of a GPU of that
architecture: they show what a smaller block and software conversions cost.

    cmake --preset cuda -DOCTAVO_CUDA_AS='750;800;860;890;1200' && cmake --build --preset cuda
    python3 benchmarks/emulate_archs.py --build build-cuda
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from report import ROOT, option_parser


@dataclass(frozen=True)
class Weights:
    dtype: str
    store: str

    @property
    def name(self) -> str:
        return self.dtype if self.store == "nearest" else self.store


WEIGHTS = [Weights("fp32", "nearest"), Weights("bf16", "nearest"), Weights("bf16", "bf16+8")]


def libraries(build: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns the libraries of the other architectures by number, in ascending order."""
    found = {path.parent.name: path for path in build.glob("as/*/liboctavo.so")}
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def bench(
    build: pathlib.Path, library: pathlib.Path | None, weights: Weights, args: argparse.Namespace
) -> list[Any]:
    """Returns the rows of the command's JSON, one for each state format."""
    command = [str(build / "bin/octavo"), "bench", "optimizer", "--json", "--device", args.device]
    command += ["--state", args.state, "--numel", args.numel, "--repeat", str(args.repeat)]
    command += ["--param-dtype", weights.dtype, "--store", weights.store]
    environment = dict(os.environ)
    if library is not None:
        environment["LD_PRELOAD"] = str(library)
    run = f"{' '.join(command)} over {library or 'its own library'}"
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    # The loader continues without a library that it cannot load, and then times the wrong one.
    if done.returncode != 0 or "cannot be preloaded" in done.stderr:
        raise SystemExit(f"{run}:\n{done.stderr}{done.stdout}")
    rows = json.loads(done.stdout)["rows"]
    if bad := [row["error"] for row in rows if row["error"]]:
        raise SystemExit(f"{run}: {bad[0]}")
    return rows


def main() -> int:
    parser = option_parser(__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-cuda")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--state", default="fp32,bf16,8bit,4bit,fp8")
    parser.add_argument("--numel", default="2^26")
    parser.add_argument("--repeat", type=int, default=10)
    args = parser.parse_args()
    build = args.build.resolve()
    archs = libraries(build)
    if not archs:
        raise SystemExit(f"{build}/as: no libraries; configure with -DOCTAVO_CUDA_AS='750;800;860;890;1200'")

    titles = "".join(f"{'as ' + arch:>9}" for arch in archs)
    print(f"{'weights':<8} {'states':<8} {'ms own':>8} {'% copy':>7}{titles}")
    different = []
    for weights in WEIGHTS:
        own = bench(build, None, weights, args)
        others = {arch: bench(build, path, weights, args) for arch, path in archs.items()}
        for i, row in enumerate(own):
            ms = row["ms_median"]
            line = f"{weights.name:<8} {row['state']:<8} {ms:8.4f} {row['percent_of_copy']:7.1f}"
            for arch, rows in others.items():
                same = rows[i]["checksum"] == row["checksum"]
                line += f"{rows[i]['ms_median'] / ms:8.2f}x" if same else f"{'BITS':>9}"
                if not same:
                    different.append(f"{weights.name} weights, {row['state']} states as {arch}")
            print(line, flush=True)
    verdict = "" if different else "; the bits are equal"
    print(f"as N: time divided by the time of the build's own kernels{verdict}")
    for each in different:
        print(f"checksums differ: {each}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
