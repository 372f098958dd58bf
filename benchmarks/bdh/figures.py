"""BDH trained by `octavo train` beside the published PyTorch implementation: losses in seeds, and speed.

`loss` trains the arms that --runs lacks and reports, `report` does so from the files alone, `speed` times
both sides on the same shapes, `precision` has memory, speed and loss by precision. The reference's losses
come from `reference.py loss`. See README.md.
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
from octavo_runs import ARMS

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _arms(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in ARMS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(ARMS)}")
    return names


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    reports = argparse.ArgumentParser(add_help=False)
    reports.add_argument("--reference-results", type=pathlib.Path, help="what `reference.py loss` wrote")
    reports.add_argument("--against", help="arm to compare with (the first of the reference, else fp32)")
    reports.add_argument("--svg", type=pathlib.Path, help="write the plot there")
    reports.add_argument("--seeds", type=int, default=3, help="seeds 0 to n-1 (3)")
    trains = argparse.ArgumentParser(add_help=False)
    trains.add_argument("--text", type=pathlib.Path, required=True, help="its last tenth is held out")
    trains.add_argument("--command", type=pathlib.Path, default=ROOT / "build/bin/octavo", dest="octavo")
    trains.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of docs/config.md for all runs"
    )
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--runs", type=pathlib.Path, required=True, help="folder of the run folders")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="mode", required=True)
    commands.add_parser("report", parents=[folder, reports], help="table and plot from the files alone")
    loss = commands.add_parser("loss", parents=[folder, trains, reports], help="train, then report")
    loss.add_argument("--arms", type=_arms, default=list(octavo_runs.DEFAULT), help=f"of {', '.join(ARMS)}")
    loss.add_argument("--jobs", type=int, default=1, help="runs side by side (1)")
    loss.add_argument("--time-limit", type=float, metavar="SECONDS", help="then stop; the same call goes on")
    bdh_settings.add_flags(loss, Settings())
    speed = commands.add_parser("speed", parents=[folder, trains], help="time both sides")
    speed.add_argument("--arms", type=_arms, default=["bf16 adamw_8bit"], help=f"of {', '.join(ARMS)}")
    speed.add_argument("--checkpointing", choices=("on", "off", "both"), default="both")
    speed.add_argument("--reference", type=pathlib.Path, help="a checkout of pathwaycom/bdh")
    speed.add_argument(
        "--reference-modes", default="bf16,bf16-compiled,tf32", help="as reference.py's --mode"
    )
    speed.add_argument("--device", help="of the reference (a GPU if there is one); octavo's: --set device=…")
    precision = commands.add_parser("precision", parents=[folder, trains], help="memory, speed and loss")
    own = list(precision_report.ARMS)
    precision.add_argument("--arms", type=_arms, default=own, help=f"of {', '.join(ARMS)}")
    precision.add_argument("--checkpointing", choices=("on", "off"), default="on")
    for each in (speed, precision):
        each.add_argument("--warm-up", type=int, default=10, help="steps (10)")
        each.add_argument("--repeat", type=int, default=40, help="steps timed (40)")
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
    return speed_report.Octavo(
        options.octavo,
        options.text,
        options.runs,
        bdh_settings.from_flags(options),
        options.warm_up,
        options.repeat,
        tuple(options.set),
    )


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
            print(
                speed_report.time_reference(options.reference, mode, settings, *turns, options.device).line(),
                flush=True,
            )
    return 1 if errors else 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.mode in ("speed", "precision"):
        return speed(options) if options.mode == "speed" else precision(options)
    status = train(options) if options.mode == "loss" else 0
    return report(options) or status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that runs are stopped, too
    try:
        raise SystemExit(main())
    except (ValueError, OSError) as error:
        raise SystemExit(f"figures.py: {error}") from error
