"""Compares BDH trained by `octavo train` with the published PyTorch implementation: losses and speed.

`loss` trains the arms that --runs does not contain and then reports; `report` only reads the files; `speed`
times both sides with the same shapes; `precision` reports memory, speed and loss by precision. The
reference's losses come from `reference.py loss`. README.md has examples.
"""

from __future__ import annotations

import argparse
import pathlib
import signal
import sys
from collections.abc import Sequence

import bdh_settings
import loss_report
import octavo_runs
import precision_report
import run_folder
import speed_report
from bdh_settings import Settings
from convergence_parts import report as shared
from octavo_runs import ARMS


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names, arms = f"some of {', '.join(ARMS)}", shared.some_of(list(ARMS))
    reports = argparse.ArgumentParser(add_help=False)
    add = reports.add_argument
    add("--reference-results", type=pathlib.Path, help="the results of `reference.py loss`")
    add("--against", help="arm to compare with (default: the reference's first arm, else fp32)")
    add("--svg", type=pathlib.Path, help="file of the plot")
    add("--seeds", type=int, default=3, help="seeds 0 to n-1 (3)")
    trains = argparse.ArgumentParser(add_help=False)
    add = trains.add_argument
    add("--text", type=pathlib.Path, required=True, help="text file; its last tenth is held out")
    add("--command", type=pathlib.Path, default=shared.ROOT / "build/bin/octavo", dest="octavo")
    add(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of docs/config.md for all runs"
    )
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--runs", type=pathlib.Path, required=True, help="folder of the run folders")
    parser = shared.option_parser(__doc__)
    commands = parser.add_subparsers(dest="mode", required=True)
    commands.add_parser("report", parents=[folder, reports], help="table and plot from the files alone")
    loss = commands.add_parser("loss", parents=[folder, trains, reports], help="train, then report")
    loss.add_argument("--arms", type=arms, default=list(octavo_runs.DEFAULT), help=names)
    loss.add_argument("--jobs", type=int, default=1, help="concurrent runs (1)")
    loss.add_argument("--time-limit", type=float, metavar="SECONDS", help="stop then; the same call resumes")
    bdh_settings.add_flags(loss, Settings())
    speed = commands.add_parser("speed", parents=[folder, trains], help="time both sides")
    add = speed.add_argument
    add("--arms", type=arms, default=["bf16 adamw_8bit"], help=names)
    add("--checkpointing", choices=("on", "off", "both"), default="both")
    add("--reference", type=pathlib.Path, help="a checkout of pathwaycom/bdh")
    add("--reference-modes", default="bf16,bf16-compiled,tf32", help="modes of reference.py's --mode")
    add("--device", help="the reference's device (a GPU if there is one); octavo's is --set device=…")
    precision = commands.add_parser("precision", parents=[folder, trains], help="memory, speed and loss")
    precision.add_argument("--arms", type=arms, default=list(precision_report.ARMS), help=names)
    precision.add_argument("--checkpointing", choices=("on", "off"), default="on")
    for each in (speed, precision):
        each.add_argument("--warm-up", type=int, default=10, help="steps before the timed ones (10)")
        each.add_argument("--repeat", type=int, default=40, help="timed steps (40)")
        bdh_settings.add_flags(each, Settings(n_embd=512, batch_size=32, block_size=512))
    return parser.parse_args(arguments)


def train(options: argparse.Namespace) -> int:
    settings = bdh_settings.from_flags(options)
    config = octavo_runs.prepare(options.runs, settings, options.text, options.set)
    wanted = octavo_runs.tasks(options.arms, options.seeds)
    todo = [task for task in wanted if not run_folder.read(options.runs / task.name).done]
    print(f"{len(wanted) - len(todo)} of {len(wanted)} runs are done", file=sys.stderr)
    processes = octavo_runs.Processes(options.octavo, config, options.set)
    failed = octavo_runs.run(processes, todo, options.jobs, options.time_limit)
    for task in failed:
        why = speed_report.last_line(processes.log(task).read_text(errors="replace"))
        print(f"{task.name} failed: {why} ({processes.log(task)})", file=sys.stderr)
    return 1 if failed else 0


def report(options: argparse.Namespace) -> int:
    path = options.reference_results
    reference = loss_report.reference_curves(path, options.runs) if path is not None else []
    curves = reference + loss_report.octavo_curves(options.runs, options.seeds)
    against = options.against or (reference[0].arm if reference else "fp32")
    found = loss_report.rows(curves, against)
    print(loss_report.table(found), *loss_report.remarks(curves, against), sep="\n\n")
    if options.svg is not None:
        options.svg.write_text(loss_report.svg(curves, found))
    return 0


def timed(options: argparse.Namespace) -> speed_report.Octavo:
    counts = (options.warm_up, options.repeat, tuple(options.set))
    settings = bdh_settings.from_flags(options)
    return speed_report.Octavo(options.octavo, options.text, options.runs, settings, *counts)


def precision(options: argparse.Namespace) -> int:
    ours, errors, first = timed(options), 0, None
    print(precision_report.HEAD, flush=True)
    for arm in options.arms:
        row = precision_report.measure(ours, arm, options.checkpointing == "on")
        errors += bool(row.timing.error)
        first = first or (None if row.timing.error else row.timing)
        print(row.line(first or row.timing), flush=True)
    return 1 if errors else 0


def speed(options: argparse.Namespace) -> int:
    ours, errors = timed(options), 0
    settings, turns = ours.settings, (ours.warm_up, ours.repeat)
    print(speed_report.HEAD, flush=True)
    for arm in options.arms:
        for on in {"on": (True,), "off": (False,), "both": (True, False)}[options.checkpointing]:
            timing = ours.time(arm, on)
            errors += bool(timing.error)
            print(timing.line(), flush=True)
    if options.reference is not None:
        for mode in options.reference_modes.split(","):
            where = (options.reference, mode, settings)
            print(speed_report.time_reference(*where, *turns, options.device).line(), flush=True)
    return 1 if errors else 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.mode in ("speed", "precision"):
        return speed(options) if options.mode == "speed" else precision(options)
    status = train(options) if options.mode == "loss" else 0
    return report(options) or status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that the runs are stopped too
    try:
        raise SystemExit(main())
    except (ValueError, OSError) as error:
        raise SystemExit(f"figures.py: {error}") from error
