"""Is accuracy lost with low-bit states? A character GPT trained with several of them, in paired seeds.

All arms of a seed start from the same weights and see the same batches and dropout masks. The loss on the
whole validation part after the last step is compared with that of fp32 states by an equivalence test
(tost.py). `run` trains what the results file lacks, and can be stopped and called again; `report` makes the
table and the plot from the file alone. See README.md beside this file.
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


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in ARMS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(ARMS)}")
    return names


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",") if number]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--results", type=pathlib.Path, required=True, help="JSON lines, one per finished run"
    )
    shared.add_argument("--margin", type=float, default=0.005, help="of equivalence, in nats (0.005)")
    shared.add_argument("--svg", type=pathlib.Path, help="write the plot there")
    shared.add_argument("--json", action="store_true", help="print JSON instead of a Markdown table")
    commands.add_parser("report", parents=[shared], help="table and plot from the results file")
    run = commands.add_parser("run", parents=[shared], help="train what the results file lacks, then report")
    run.add_argument("--text", type=pathlib.Path, required=True, help="its last tenth is for validation")
    run.add_argument("--arms", type=_names, default=list(DEFAULT_ARMS), help=f"of {', '.join(ARMS)}")
    run.add_argument("--beta2", type=_numbers, default=[0.99, 0.999], help="0.99,0.999")
    run.add_argument("--seeds", type=int, default=8, help="seeds 0 to n-1 (8)")
    run.add_argument("--bad-seeds", type=int, default=4, help="of them for the known-bad arm (4)")
    run.add_argument("--jobs", type=int, default=4, help="runs at once, each on a stream of its own (4)")
    run.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="start nothing that would take longer"
    )
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    run.add_argument("--device", type=torch.device, default=device)
    run.add_argument("--precision", choices=("bf16", "fp32"), help="of the model (bf16 on a GPU, else fp32)")
    run.add_argument("--compile", action="store_true", dest="compiled", help="torch.compile the model")
    for field in dataclasses.fields(Settings):
        if field.name not in ("text_crc", "vocabulary", "precision", "compiled", "device"):
            name = "--" + field.name.replace("_", "-")
            run.add_argument(name, type=type(field.default), default=field.default, help=f"({field.default})")
    return parser.parse_args(arguments)


def settings_of(options: argparse.Namespace, vocabulary: int, crc: str) -> Settings:
    given: dict[str, Any] = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(Settings)
        if hasattr(options, field.name)
    }
    on_gpu = options.device.type == "cuda"
    given["precision"] = options.precision or ("bf16" if on_gpu else "fp32")
    given["device"] = torch.cuda.get_device_name(options.device) if on_gpu else "cpu"
    return Settings(**{**given, "vocabulary": vocabulary, "text_crc": crc})


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
        print(f"time is up: {len(todo) - done} runs are left; the same call goes on", file=sys.stderr)


def report(options: argparse.Namespace) -> int:
    known = records.load(options.results)
    if not known:
        print(f"{options.results} holds no finished run: make some with `char_gpt.py run`", file=sys.stderr)
        return 1
    found = summary.rows(known, options.margin)
    remarks = summary.remarks(found, known, options.margin)
    if options.json:
        whole = {"settings": known[0]["settings"], "margin": options.margin, "remarks": remarks}
        print(json.dumps({**whole, "rows": [row.as_dict() for row in found]}, indent=1))
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
