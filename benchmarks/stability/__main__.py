"""The command of the study of stability: it trains what is missing, and reports.

    python -m benchmarks.stability --runs DIR [--out benchmarks/results]

A run that ended in DIR is not repeated, so a study that was stopped goes on with the same command.
--dry-run says what would be trained, and for how long. docs/studies.md describes the study.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import mean

from rich.console import Console

from benchmarks import driver
from benchmarks.stability import runs as training
from benchmarks.stability.conditions import objective
from benchmarks.stability.outcomes import facts, outcome
from benchmarks.stability.plan import PARTS, Run
from rlobj.base.errors import RlobjError, RunError
from rlobj.base.folders import lock_folder
from rlobj.runs.configuration import read_settings
from rlobj.settings.layers import flattened

INTERRUPTED = 130
SECONDS = 110.0
"""CPU seconds of a run, until runs in the folder were measured."""


def main() -> None:
    options = _parser().parse_args()
    console = Console(stderr=True, highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        study = [run for name in dict.fromkeys(options.parts) for run in PARTS[name].runs()]
        if options.out and options.out.is_file():
            raise RunError(f"--out {options.out} is a file; expected a folder for the report")
        refuse_other(options.runs, study)
        if not options.report:
            train(options, study, console)
        if options.report or (options.out and not options.dry_run):
            from benchmarks.stability import report

            print(report.write(options.runs, options.out or options.runs / "report"))
    except RlobjError as error:
        console.print(f"Error: {error}", style="red", markup=False, soft_wrap=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        console.print("Stopped. Runs in progress are not counted. The same command goes on.")
        raise SystemExit(INTERRUPTED) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stability", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--runs", type=Path, required=True, metavar="DIR", help="folder of the runs")
    add("--out", type=Path, help="folder of the report; default with --report: DIR/report")
    add("--report", action="store_true", help="train nothing; report the runs that ended")
    add("--dry-run", action="store_true", help="train nothing; say what would be trained")
    jobs = "runs at one time, of about 600 MiB each; default: cores"
    add("--jobs", type=_positive, default=len(os.sched_getaffinity(0)), help=jobs)
    add("--parts", nargs="+", choices=PARTS, default=[*PARTS], help="train these parts only")
    add("--retry-failed", action="store_true", help="train failed runs again")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def refuse_other(folder: Path, study: Sequence[Run]) -> None:
    """Check that the runs in a folder have the settings that they would have now.

    Raises:
        RunError: a file, a folder of something else, or a run with other settings.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RunError(f"{folder} is a file; expected the folder of a study, or a new folder")
    others = {each.name for each in folder.iterdir()} - {".lock", "report", *PARTS}
    if others:
        raise RunError(
            f"{folder} is not the folder of this study: it has {', '.join(sorted(others)[:3])}. "
            "Name a new folder: --runs NEW"
        )
    for run in study:
        out = run.folder(folder)
        if driver.ended(out) != driver.DONE:
            continue
        settings = read_settings(out)
        made = {"objective": settings.pop("objective", None), **flattened(settings)}
        loss = objective(run.arm.condition).model_dump(mode="json", by_alias=True)
        for name, value in {**flattened(run.settings()), "objective": loss}.items():
            if value == {}:  # the defaults of a part that is off otherwise
                same = any(key.startswith(f"{name}.") for key in made)
            else:
                same = made.get(name) == value
            if not same:
                raise RunError(
                    f"{out} was made with {name}={made.get(name)!r}, and the study has {value!r}. "
                    "Delete the folder of this run to train it again, or name a new one for the "
                    "study: --runs NEW"
                )
        outcome(run, folder)  # which names a damaged run


def train(options: argparse.Namespace, study: Sequence[Run], console: Console) -> None:
    """Say how long it takes, and train what is missing."""
    folder, total = options.runs, len(study)
    failed = [out for run in study if driver.ended(out := run.folder(folder)) == driver.FAILED]
    if failed and not options.retry_failed:
        console.print(f"{len(failed)} runs failed and stay so; --retry-failed trains them again.")
    console.print(f"{total} runs: {_left(folder, study, options.jobs)}", soft_wrap=True)
    if options.dry_run:
        return
    lock = threading.Lock()

    def tell(run: Run, state: str) -> None:
        with lock:
            out = run.folder(folder)
            console.print(f"{out.relative_to(folder)}: {state}", markup=False, soft_wrap=True)
            if state == driver.DONE:
                console.print(f"  {_left(folder, study, options.jobs)}", soft_wrap=True)
            elif state != "running":
                console.print(driver.last_lines(out), style="red", markup=False, soft_wrap=True)

    with lock_folder(folder, "training the study in"):
        for out in failed if options.retry_failed else ():
            shutil.rmtree(out)
        training.make(folder, study, options.jobs, tell)


def _left(folder: Path, study: Sequence[Run], jobs: int) -> str:
    """How many runs did not end, and how long they take together."""
    ended = [out for run in study if driver.ended(out := run.folder(folder))]
    done = [out for out in ended if driver.ended(out) == driver.DONE]
    each = [facts(out)["wall_seconds"] for out in done]
    count = len(study) - len(ended)
    seconds = count * (mean(each) if each else SECONDS) / max(min(jobs, count), 1)
    return f"{count} to train, {timedelta(seconds=round(seconds))} left, {jobs} at one time"


if __name__ == "__main__":
    main()
