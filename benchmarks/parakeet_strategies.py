"""Memory, speed and hours of training Parakeet TDT 0.6B by strategy: 8-bit states, checkpointing, offload.

One row for each strategy: the peak of torch's allocator, what the optimizer holds in host memory, clips a
second and as a percentage of the first row's, and hours for 5.2 million clips and for 100,000. Each is
`octavo bench speech` in a process of its own. The strategies take turns; the median of --rounds is reported
with its range.

python benchmarks/parakeet_strategies.py --command build-cuda/bin/octavo
python benchmarks/parakeet_strategies.py --size tiny --clips 2 --seconds 1 --tokens 4 --device cpu --steps 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

import harness

STRATEGIES: dict[str, list[str]] = {
    "adamw": ["--optimizer=adamw"],
    "8-bit AdamW": [],
    "8-bit + accumulation 6": ["--accumulation=6"],
    "8-bit + offload stream": ["--offload=stream"],
    "8-bit + offload host, gradients too": ["--offload=host", "--offload-gradients"],
    "8-bit + checkpointing": ["--checkpointing=on"],
    "8-bit + checkpointing + accumulation 6": ["--checkpointing=on", "--accumulation=6"],
    "8-bit + checkpointing + offload stream": ["--checkpointing=on", "--offload=stream"],
    "8-bit + checkpointing + offload stream, gradients too": [
        *("--checkpointing=on", "--offload=stream", "--offload-gradients"),
    ],
    "8-bit + checkpointing + offload host": ["--checkpointing=on", "--offload=host"],
    "8-bit + checkpointing + offload host, gradients too": [
        *("--checkpointing=on", "--offload=host", "--offload-gradients"),
    ],
    "8-bit + checkpointing + offload host, gradients too + accumulation 6": [
        *("--checkpointing=on", "--offload=host", "--offload-gradients", "--accumulation=6"),
    ],
}
DATA_SETS = {"5.2M": 5_200_000, "100k": 100_000}  # clips
PASSED = ("size", "clips", "seconds", "tokens", "steps", "device")  # to the command


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the command measured; "error" says why there is nothing."""
    given = [f"--{each}={getattr(options, each)}" for each in PASSED if getattr(options, each) is not None]
    command = [options.command, "bench", "speech", "--json", "--optimizer=adamw_8bit", *given]
    own = STRATEGIES[name]
    if any(each.startswith("--optimizer") for each in own):
        command.remove("--optimizer=adamw_8bit")
    done = subprocess.run([*command, *own], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    found = json.loads(done.stdout)
    return {"device": found["device"], "parameters": found["parameters"], **found["rows"][0]}


def hours(clips: int, row: dict[str, Any]) -> float:
    return clips / float(row["clips_per_second"]) / 3600


def joined(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median round by speed; of an even number of rounds, the slower one in the middle."""
    failed = [each for each in rounds if "error" in each]
    if failed:
        return failed[0]
    speeds = [each["clips_per_second"] for each in rounds]
    median = next(each for each in rounds if each["clips_per_second"] == statistics.median_low(speeds))
    return {**median, "least": min(speeds), "most": max(speeds)}


def cells(name: str, row: dict[str, Any], base: dict[str, Any] | None) -> str:
    if "error" in row:
        values = ["failed: " + row["error"].replace("|", "/"), "", "", "", *[""] * len(DATA_SETS)]
    else:
        speed = row["clips_per_second"]
        share = f"{100 * speed / base['clips_per_second']:.0f}%" if base and "error" not in base else "-"
        memory = [f"{row['memory'][key] / 1e9:.2f}" for key in ("peak", "host")]
        spread = f"{speed:.1f} ({row['least']:.1f} to {row['most']:.1f})"
        values = [*memory, spread, share, *(f"{hours(clips, row):.2f}" for clips in DATA_SETS.values())]
    return "| " + " | ".join([name, *values]) + " |"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--command", default=str(harness.octavo_command()), help="the octavo command (default %(default)s)")
    add("--rows", help="only the strategies whose name contains one of these, comma-separated")
    add("--rounds", type=int, default=3, help="rounds, in which strategies take turns (default 3)")
    add("--list", action="store_true", help="print the strategies and their options, run nothing")
    for name in PASSED:
        add(f"--{name}", help="of octavo bench speech (default: its own)")
    add("--json", help="write the results there as well")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds: got {options.rounds}, expected at least 1")
    wanted = (options.rows or "").split(",")
    options.names = [name for name in STRATEGIES if any(text in name for text in wanted)]
    if not options.names:
        parser.error(f"--rows: got {options.rows!r}, expected a part of one of {', '.join(STRATEGIES)}")
    return options


def main() -> int:
    options = parse_options()
    if options.list:
        for name in options.names:
            print(f"{name}: octavo bench speech {' '.join(STRATEGIES[name])}".rstrip())
        return 0
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in options.names}
    for turn in range(options.rounds):
        for name in options.names:
            print(f"round {turn + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
            if not any("error" in each for each in rounds[name]):
                rounds[name].append(run(name, options))
    rows = {name: joined(each) for name, each in rounds.items()}
    ran = [row for row in rows.values() if "error" not in row]
    if ran:
        size = f"{ran[0]['parameters']:,} parameters, {ran[0]['clips']} clips in a micro-batch"
        print(f"{ran[0]['device']}, {size}, {options.rounds} rounds\n")
    head = ["strategy", "peak GB", "host GB", "clips/s", "speed"]
    head += [f"hours for {name} clips" for name in DATA_SETS]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for name, row in rows.items():
        print(cells(name, row, next(iter(rows.values()))))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rows": rows, "rounds": rounds}, file, indent=2)
    return 0 if len(ran) == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
