"""Measures strategies of training Parakeet TDT 0.6B: 8-bit states, checkpointing, offload, accumulation.

The table has one row for each strategy: the peak of torch's allocator, the host memory of the optimizer,
clips per second, the speed relative to the first row, and the hours for 5.2 million and for 100,000 clips.
Each strategy is a process of `octavo bench speech`. The strategies run in turns; the table has the median of
--rounds and the range.

python benchmarks/parakeet_strategies.py --command build-cuda/bin/octavo
python benchmarks/parakeet_strategies.py --size tiny --clips 2 --seconds 1 --tokens 4 --device cpu --steps 1
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from report import (
    last_line,
    markdown,
    octavo_command,
    option_parser,
    require_positive,
    run_octavo,
    select,
    write_json,
)

CHECKPOINTING, ACCUMULATION = "--checkpointing=on", "--accumulation=6"
STREAM, HOST, GRADIENTS = "--offload=stream", "--offload=host", "--offload-gradients"
STRATEGIES: dict[str, list[str]] = {
    "adamw": ["--optimizer=adamw"],
    "8-bit AdamW": [],
    "8-bit + accumulation 6": [ACCUMULATION],
    "8-bit + offload stream": [STREAM],
    "8-bit + offload host, gradients too": [HOST, GRADIENTS],
    "8-bit + checkpointing": [CHECKPOINTING],
    "8-bit + checkpointing + accumulation 6": [CHECKPOINTING, ACCUMULATION],
    "8-bit + checkpointing + offload stream": [CHECKPOINTING, STREAM],
    "8-bit + checkpointing + offload stream, gradients too": [CHECKPOINTING, STREAM, GRADIENTS],
    "8-bit + checkpointing + offload host": [CHECKPOINTING, HOST],
    "8-bit + checkpointing + offload host, gradients too": [CHECKPOINTING, HOST, GRADIENTS],
    "8-bit + checkpointing + offload host, gradients too + accumulation 6": [
        *(CHECKPOINTING, HOST, GRADIENTS, ACCUMULATION)
    ],
}
DATA_SETS = {"5.2M": 5_200_000, "100k": 100_000}  # clips
FORWARDED = ("size", "clips", "seconds", "tokens", "steps", "device")  # options of octavo bench speech


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the command's row; "error" is the reason if there is no row."""
    arguments = [f"--{each}={value}" for each in FORWARDED if (value := getattr(options, each)) is not None]
    own = STRATEGIES[name]
    if not any(each.startswith("--optimizer") for each in own):
        arguments.append("--optimizer=adamw_8bit")
    try:
        found = run_octavo(options.command, "bench", "speech", *arguments, *own)
    except ValueError as error:
        return {"error": last_line(str(error).removeprefix("octavo bench speech: "))}
    return {"device": found["device"], "parameters": found["parameters"], **found["rows"][0]}


def joined(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the round with the median speed; the slower middle one of an even number of rounds."""
    failed = [each for each in rounds if "error" in each]
    if failed:
        return failed[0]
    speeds = [each["clips_per_second"] for each in rounds]
    median = next(each for each in rounds if each["clips_per_second"] == statistics.median_low(speeds))
    return {**median, "least": min(speeds), "most": max(speeds)}


def cells(name: str, row: dict[str, Any], base: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [name, "failed: " + row["error"].replace("|", "/"), "", "", "", *[""] * len(DATA_SETS)]
    speed = row["clips_per_second"]
    share = "-" if "error" in base else f"{100 * speed / base['clips_per_second']:.0f}%"
    memory = [f"{row['memory'][key] / 1e9:.2f}" for key in ("peak", "host")]
    spread = f"{speed:.1f} ({row['least']:.1f} to {row['most']:.1f})"
    return [name, *memory, spread, share, *(f"{clips / speed / 3600:.2f}" for clips in DATA_SETS.values())]


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--command", default=str(octavo_command()), help="the octavo command (default %(default)s)")
    add("--rows", help="only strategies whose name contains one of these, comma-separated")
    add("--rounds", type=int, default=3, help="rounds, in which the strategies take turns (default 3)")
    add("--list", action="store_true", help="print the strategies and their options and exit")
    for name in FORWARDED:
        add(f"--{name}", help="option of octavo bench speech (default: the command's)")
    add("--json", help="also write the results to this file")
    options = parser.parse_args()
    require_positive(parser, options, "rounds")
    options.names = select(parser, "--rows", STRATEGIES, options.rows)
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
    base = next(iter(rows.values()))
    print(markdown(head, [cells(name, row, base) for name, row in rows.items()]))
    write_json(options.json, {"rows": rows, "rounds": rounds})
    return 0 if len(ran) == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
