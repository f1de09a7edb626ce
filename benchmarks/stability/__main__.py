"""The command of the study of stability: it trains what is missing, and reports.

    python -m benchmarks.stability --runs DIR [--out benchmarks/results]

A run that ended in DIR is not repeated, so a study that was stopped goes on with the same command.
--dry-run says what would be trained, and for how long. docs/stability.md describes the study.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from rich.console import Console

from benchmarks.stability import folder, runs
from benchmarks.stability.conditions import CONDITIONS, GROUPS
from benchmarks.stability.plan import Asked, Stage, Study
from benchmarks.stability.progress import Lines, Measured, cores, estimate, remaining
from benchmarks.stability.regimes import Setting
from rlobj.base.errors import RlobjError, nearest
from rlobj.config.layers import PROFILES

INTERRUPTED = 130


def main() -> None:
    options = _parser().parse_args()
    console = Console(stderr=True, highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        study = Study(options.runs, _asked(options))
        if not options.report:
            _train(study, options, console)
        if options.report or (options.out and not options.dry_run):
            _report(study, options)
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
    ended = "train nothing; report the runs that ended. Give the options of their training"
    add("--report", action="store_true", help=ended)
    add("--dry-run", action="store_true", help="train nothing; say what would be trained")
    add("--jobs", type=_positive, help="runs at one time, of about 600 MiB each; default: cores")
    add("--retry-failed", action="store_true", help="train failed runs again")
    more = [name for name in GROUPS if name != "core"]
    add("--also", help=f"train these groups at the edge, too: {','.join(more)}")
    some = "train these conditions or groups only, such as dapo-loss,stapo,tau_p; no map"
    add("--only", help=some)
    add("--seeds", type=_positive, default=20, help="seeds at the edge (20)")
    add("--stable-seeds", type=_positive, default=5, help="seeds at the stable setting (5)")
    add("--rates", help="train at these learning rates, such as 5e-4,7e-4, without a search")
    add("--task", default="scratchpad", choices=PROFILES, help="family of problems (scratchpad)")
    add("--steps", type=_positive, default=200, help="rollouts of a run (200)")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _asked(options: argparse.Namespace) -> Asked:
    """What the options ask for.

    Raises:
        RlobjError: an option that does not fit.
    """
    also = _names(options.also, {name: [*GROUPS[name]] for name in GROUPS}, "--also")
    every = {**{name: [*group] for name, group in GROUPS.items()}, **{n: [n] for n in CONDITIONS}}
    core = _names(options.only, every, "--only") or [*GROUPS["core"]]
    return Asked(
        conditions=[*dict.fromkeys([*core, *also])],
        core=core,
        seeds=options.seeds,
        stable_seeds=options.stable_seeds,
        task=options.task,
        steps=options.steps,
        rates=_rates(options.rates),
        chart=not options.only,
    )


def _names(text: str | None, known: dict[str, list[str]], option: str) -> list[str]:
    """The conditions that a list with commas names.

    Names of conditions may have commas of their own, so the longest known name is taken first.
    """
    if text is None:
        return []
    found, rest = [], text.strip()
    while rest or not found:
        fitting = [n for n in known if rest == n or rest.startswith(f"{n},")]
        if not fitting:
            name = rest.split(",")[0]
            near = nearest(name, known, spell_out=False) or f" Known: {'; '.join(known)}"
            raise RlobjError(f"{option} {text!r}: there is no '{name}'.{near}")
        name = max(fitting, key=len)
        found += known[name]
        rest = rest[len(name) + 1 :].lstrip()
    return [*dict.fromkeys(found)]


def _rates(text: str | None) -> list[float]:
    if text is None:
        return []
    try:
        rates = [float(each) for each in text.split(",")]
    except ValueError:
        rates = [0.0]
    if any(not 0 < rate < 1 for rate in rates):
        raise RlobjError(
            f"--rates {text!r}: expected learning rates between 0 and 1, with commas, such as "
            "5e-4,7e-4"
        )
    for setting in map(Setting, rates):
        if Setting.named(str(setting)) != setting:
            raise RlobjError(
                f"--rates {text}: {setting.learning_rate!r} has too many digits for the name of "
                f"its folder, {setting}. Give at most six"
            )
    return [*dict.fromkeys(rates)]


def _train(study: Study, options: argparse.Namespace, console: Console) -> None:
    """Say how long it takes, and train what is missing."""
    held = folder.refuse_other(study.runs)
    failed = folder.failed(study.runs)
    measured, jobs = Measured.read(study.runs), options.jobs or cores()
    stages = study.stages()
    total = sum(stage.count for stage in stages)
    left = remaining(study, stages, measured)
    said = [estimate(left, total, measured, jobs)]
    if failed:
        again = "start again" if options.retry_failed else "stay so; --retry-failed starts them"
        said.append(f"{len(failed)} of its {len(held)} runs failed and {again}.")
    console.print("\n".join(said), soft_wrap=True)
    if options.dry_run:
        return
    with folder.opened(study.runs):
        if options.retry_failed:
            folder.forget_failed(study.runs)
            study = Study(study.runs, study.asked)
        while stage := _next(study):
            lines = Lines(study, console, jobs, study.stages())
            runs.make(study.runs, stage.runs, jobs, lines.tell)
    _say_choice(study, console)
    if not options.out:
        console.print("--report with the same options writes the report.", soft_wrap=True)


def _next(study: Study) -> Stage | None:
    """The first stage with a run that did not end."""
    for stage in study.stages():
        if any(study.outcome(run) is None for run in stage.runs):
            return stage
    return None


def _say_choice(study: Study, console: Console) -> None:
    """Print which settings the rule chose."""
    if study.asked.rates or not (choice := study.choice()):
        return
    for name in ("edge", "stable", "beyond"):
        console.print(f"{name}: {getattr(choice, name) or 'none'}", soft_wrap=True)


def _report(study: Study, options: argparse.Namespace) -> None:
    """Write the report of the runs that ended."""
    from benchmarks.stability import report

    folder.refuse_other(study.runs)
    out = options.out or study.runs / folder.REPORT
    print(report.write(study.runs, out, study.asked))


if __name__ == "__main__":
    main()
