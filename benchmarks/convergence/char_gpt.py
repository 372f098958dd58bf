"""Trains a character GPT with several state formats, in paired seeds, and tests whether accuracy is lost.

All arms of a seed start with the same weights and get the same batches and dropout masks. An equivalence test
(tost.py) compares the loss on the complete validation part after the last step with that of fp32 states.
`run` trains the runs that the results file does not contain, and can be stopped and called again. `report`
makes the table and the plot from the file alone. README.md has examples.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import curves_svg
import records
import summary
import torch
from arms import ARMS, DEFAULT_ARMS
from run_inputs import Settings, read_text
from schedule import Deadline, Runner, tasks

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

from report import numbers, option_parser, some_of


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    add = shared.add_argument
    add("--results", type=pathlib.Path, required=True, help="JSON lines, one for each finished run")
    add("--margin", type=float, default=0.005, help="margin of equivalence, in nats (0.005)")
    add("--svg", type=pathlib.Path, help="file of the plot")
    add("--json", action="store_true", help="print JSON instead of a Markdown table")
    commands.add_parser("report", parents=[shared], help="table and plot from the results file")
    run = commands.add_parser("run", parents=[shared], help="train the missing runs, then report")
    add = run.add_argument
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    add("--text", type=pathlib.Path, required=True, help="text file; its last tenth is for validation")
    add("--arms", type=some_of(ARMS), default=list(DEFAULT_ARMS), help=f"some of {', '.join(ARMS)}")
    add("--beta2", type=numbers, default=[0.99, 0.999], help="0.99,0.999")
    add("--seeds", type=int, default=8, help="seeds 0 to n-1 (8)")
    add("--bad-seeds", type=int, default=4, help="seeds of the known-bad arm (4)")
    add("--jobs", type=int, default=4, help="concurrent runs, each on its own stream (4)")
    add("--time-limit", type=float, metavar="SECONDS", help="do not start a run that would take longer")
    add("--device", type=torch.device, default=device)
    add("--precision", choices=("bf16", "fp32"), help="precision of the model (bf16 on a GPU, else fp32)")
    add("--compile", action="store_true", dest="compiled", help="torch.compile the model")
    for field in dataclasses.fields(Settings):
        if field.name not in ("text_crc", "vocabulary", "precision", "compiled", "device"):
            name = "--" + field.name.replace("_", "-")
            add(name, type=type(field.default), default=field.default, help=f"({field.default})")
    return parser.parse_args(arguments)


def settings_of(options: argparse.Namespace, vocabulary: int, crc: str) -> Settings:
    values: dict[str, Any] = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(Settings)
        if hasattr(options, field.name)
    }
    on_gpu = options.device.type == "cuda"
    values["precision"] = options.precision or ("bf16" if on_gpu else "fp32")
    values["device"] = torch.cuda.get_device_name(options.device) if on_gpu else "cpu"
    return Settings(**{**values, "vocabulary": vocabulary, "text_crc": crc})


def run(options: argparse.Namespace) -> None:
    deadline = Deadline(options.time_limit)
    tokens, vocabulary, crc = read_text(options.text.read_bytes())
    settings = settings_of(options, vocabulary, crc)
    known = records.load(options.results)
    records.check_settings(options.results, known, dataclasses.asdict(settings))
    finished = {records.key_of(record) for record in known}
    wanted = tasks(options.arms, options.beta2, options.seeds, options.bad_seeds)
    todo = [task for task in wanted if task.key not in finished]
    print(f"{len(wanted) - len(todo)} of {len(wanted)} runs are done", file=sys.stderr)
    if not todo:
        return
    done = Runner(settings, tokens, options.device).run(todo, options.jobs, deadline, options.results)
    if done < len(todo):
        print(f"time is up: {len(todo) - done} runs are left; the same call resumes them", file=sys.stderr)


def report(options: argparse.Namespace) -> int:
    known = records.load(options.results)
    if not known:
        print(f"{options.results} contains no finished run: train with `char_gpt.py run`", file=sys.stderr)
        return 1
    found = summary.rows(known, options.margin)
    remarks = summary.remarks(found, known, options.margin)
    if options.json:
        about = {"settings": known[0]["settings"], "margin": options.margin, "remarks": remarks}
        print(json.dumps({**about, "rows": [row.as_dict() for row in found]}, indent=1))
    else:
        print(summary.table(found), *remarks, sep="\n\n")
    if options.svg is not None:
        options.svg.write_text(curves_svg.svg(known, found, options.margin))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.command == "run":
        run(options)
    return report(options)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except (ValueError, OSError) as error:
        raise SystemExit(f"char_gpt.py: {error}") from error
