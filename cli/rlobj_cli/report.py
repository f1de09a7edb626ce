"""`rlobj report`: where the time of a run went, and how its numbers moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["COURSES", "TIMES", "metric_series", "phases_of", "report", "shares_of", "times_of"]

Line = Mapping[str, Any]

COURSES = (
    ("reward", "reward/mean"),
    ("accuracy", "reward/accuracy"),
    ("held-out accuracy", "eval/accuracy"),
    ("entropy, nats", "policy/entropy"),
    ("tokens kept, share", "objective/kept_fraction"),
    ("tokens clipped, share", "objective/clip_fraction"),
    ("response length, tokens", "response/length_mean"),
)
"""Name on screen, name in metrics.jsonl."""

SHARES = (
    ("useful tokens of forward passes", "tokens/useful_share", 3),
    ("most loaded process over the mean", "tokens/rank_balance", 3),
    ("tokens left out of updates", "tokens/skipped_share", 3),
    ("response tokens without logits in updates", "tokens/skipped_logits_share", 3),
    ("tokens/s without evaluating and writing", "tokens/per_second", 0),
)
HIDDEN = (
    ("sampling, beside training", "time/sampling_hidden"),
    ("grading, beside sampling", "time/grading_hidden"),
)
TIMES = ("s a step", "share", "tokens/s")
"""Columns of the table of phases."""


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, also a going one.")],
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Write RUN/report.html as well.")
    ] = True,
) -> None:
    """Show where the time of a run went, and how its numbers moved.

    [bold]Examples[/bold]

    \b  rlobj report runs/stapo-20260101-120000
      rlobj report runs/stapo-20260101-120000 --no-page
    """
    from rich.console import Console
    from rich.text import Text

    from rlobj_cli.screen.console import facts_grid, loading

    console = Console()
    with loading(console):
        from rlobj.base.errors import ConfigError
        from rlobj.training import RunDirectory
    directory, config = RunDirectory.open(run)
    lines = directory.lines()
    steps = [line for line in lines if line.get("time/step")]
    if not steps:
        raise ConfigError(f"{run} has no finished step yet: there is nothing to report")
    name = config.preset or config.model.name or ""
    console.print(Text.assemble((name, "bold"), f"  {len(steps)} steps, {run}"), soft_wrap=True)
    console.print(_times(steps))
    console.print(facts_grid(shares_of(steps)))
    _courses(console, lines)
    if page:
        from rlobj_cli.timing_page import write_page

        place = write_page(directory.path, name, lines)
        console.print(Text.assemble("Page: ", (str(place), "bold")), soft_wrap=True)


def phases_of(steps: Sequence[Line]) -> list[tuple[str, list[float]]]:
    """Seconds of each step by phase, largest phase first, `other` last; phases of 0 are left out.

    Args:
        steps: lines of metrics.jsonl that have times.
    """
    from rlobj.training.loop.clock import PHASES

    every = [(name, [line.get(f"time/{name}") or 0.0 for line in steps]) for name in PHASES]
    other = [line.get("time/other") or 0.0 for line in steps]
    largest = sorted(every, key=lambda phase: -sum(phase[1]))
    return [phase for phase in [*largest, ("other", other)] if sum(phase[1]) > 0]


def metric_series(lines: Sequence[Line]) -> list[tuple[str, list[tuple[float, float]]]]:
    """(name, (step, value) in order) of the measures of `COURSES` with at least two values.

    A measure that is another one throughout, as accuracy is where nothing shapes the reward, is
    left out.
    """
    courses: list[tuple[str, list[tuple[float, float]]]] = []
    for name, key in COURSES:
        points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
        if len(points) > 1 and all(points != other for _, other in courses):
            courses.append((name, points))
    return courses


def times_of(steps: Sequence[Line]) -> list[tuple[str, float, tuple[str, str, str]]]:
    """(name, share of the steps' time, (seconds a step, that share, tokens per second)) by row.

    The phases as `phases_of` has them, the whole step, and what was done beside it.
    """
    from rlobj_cli.screen.console import number

    total = sum(line["time/step"] for line in steps)
    sampled = sum(line.get("tokens/sampled") or 0.0 for line in steps)
    spent = [(name, sum(seconds)) for name, seconds in phases_of(steps)]
    spent.append(("step", total))
    beside = [(name, sum(line.get(key) or 0.0 for line in steps)) for name, key in HIDDEN]
    return [
        (
            name,
            seconds / total,
            (
                number(seconds / len(steps)),
                f"{seconds / total:.1%}",
                number(sampled / seconds, 0),
            ),
        )
        for name, seconds in [*spent, *beside]
        if seconds
    ]


def shares_of(steps: Sequence[Line]) -> dict[str, str]:
    """The means of the measures of `SHARES` over the steps that have them, as text by name."""
    from rlobj_cli.screen.console import number

    shares = {}
    for name, key, digits in SHARES:
        values = [line[key] for line in steps if line.get(key) is not None]
        if values:
            shares[name] = number(sum(values) / len(values), digits)
    return shares


def _times(steps: Sequence[Line]) -> Table:
    """A row for each phase, with a bar, the whole step, and what was done beside it."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("phase")
    for name in TIMES:
        table.add_column(name, justify="right")
    table.add_column("")
    beside = [name for name, _ in HIDDEN]
    for name, share, texts in times_of(steps):
        if name == "step":
            table.add_section()
            table.add_row(name, *texts, style="bold")
        elif name in beside:
            table.add_row(name, *texts, style="dim")
        else:
            table.add_row(name, *texts, "█" * round(30 * share))
    return table


def _courses(console: Console, lines: Sequence[Line]) -> None:
    """A chart for each measure that moved."""
    from rich.text import Text

    from rlobj_cli.screen.charts import chart, resample, scale_label, steps_axis

    width = max(20, min(console.width - 12, 72))
    for name, points in metric_series(lines):
        if len({y for _, y in points}) < 2:
            continue
        xs, ys = (resample(values, 2 * width) for values in zip(*points, strict=True))
        span = max(ys) - min(ys)
        console.print(Text(f"\n          {name}", style="bold"))
        for value, row in chart(list(zip(xs, ys, strict=True)), [], width, 4):
            label = scale_label(value, span) if value is not None else ""
            console.print(
                Text(f"{label:>8} ┤", style="dim") + Text(row, style="cyan"), no_wrap=True
            )
        axis = steps_axis(points[0][0], points[-1][0], width)
        console.print(Text(f"{'':10}{axis}", style="dim"))
    console.print()
