"""`rlobj report`: how a run's time was spent, and how its metrics changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlobj_cli.screen.charts import draw_chart
from rlobj_cli.screen.console import facts_grid, loading, number, table

Line = Mapping[str, Any]

CHARTS = {
    "reward": "reward/mean",
    "accuracy": "reward/accuracy",
    "held-out accuracy": "eval/accuracy",
    "entropy, nats": "policy/entropy",
    "tokens kept, share": "objective/kept_fraction",
    "tokens clipped, share": "objective/clip_fraction",
    "groups without signal, share": "groups/without_signal_share",
    "gradient carried by 1% of the tokens, share": "gradient/top_1pct",
    "gradient norm": "train/grad_norm",
    "largest ratio": "policy/ratio_max",
    "response length, tokens": "response/length_mean",
}
"""Metrics in metrics.jsonl by their name on screen."""

MEANS = {
    "useful tokens of forward passes": "tokens/useful_share",
    "most loaded process over the mean": "tokens/rank_balance",
    "tokens left out of updates": "tokens/skipped_share",
    "response tokens without logits in updates": "tokens/skipped_logits_share",
    "tokens/s without evaluating and writing": "tokens/per_second",
}
PARALLEL = {
    "sampling, beside training": "time/sampling_hidden",
    "grading, beside sampling": "time/grading_hidden",
}
"""Work that runs at the same time as other phases, so it is no part of the step's time."""


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, finished or not.")],
) -> None:
    """Show how a run's time was spent, and how its metrics changed.

    [bold]Example[/bold]

    \b  rlobj report runs/stapo-20260101-120000
    """

    console = Console()
    with loading(console):
        from rlobj.base.errors import ConfigError
        from rlobj.config.run_folder import best_checkpoint, held_out_accuracies
        from rlobj.training import RunDirectory
    directory, config = RunDirectory.open(run)
    lines = directory.lines()
    steps = [line for line in lines if line.get("time/step")]
    if not steps:
        raise ConfigError(f"{run} has no finished step yet, so there is nothing to report")
    name = config.preset or config.model.name or ""
    console.print(Text.assemble((name, "bold"), f"  {len(steps)} steps, {run}"), soft_wrap=True)
    if best := best_checkpoint(run):
        accuracy = number(held_out_accuracies(run)[best])
        console.print(Text(f"best checkpoint {best.name}, held-out accuracy {accuracy}"))
    console.print(_times(steps))
    means = {}
    for label, key in MEANS.items():
        values = [line[key] for line in steps if line.get(key) is not None]
        if values:
            digits = 0 if key == "tokens/per_second" else 3
            means[label] = number(sum(values) / len(values), digits)
    console.print(facts_grid(means))
    _draw_charts(console, lines)


def phase_seconds(steps: Sequence[Line]) -> dict[str, float]:
    """Seconds of all steps by phase, the longest phase first and `other` last; phases of 0 s are
    left out.

    Args:
        steps: lines of metrics.jsonl that have times.
    """
    from rlobj.training.loop.clock import PHASES

    spent = {name: sum(line.get(f"time/{name}") or 0.0 for line in steps) for name in PHASES}
    order = [*sorted(spent, key=lambda name: -spent[name]), "other"]
    spent["other"] = sum(line.get("time/other") or 0.0 for line in steps)
    return {name: spent[name] for name in order if spent[name] > 0}


def metric_series(lines: Sequence[Line]) -> dict[str, list[tuple[float, float]]]:
    """The points (step, value) of each metric of `CHARTS` that has at least two of them.

    A metric that equals another one at every step is left out: accuracy is the reward if nothing
    shapes the reward.
    """
    series: dict[str, list[tuple[float, float]]] = {}
    for name, key in CHARTS.items():
        points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
        if len(points) > 1 and points not in series.values():
            series[name] = points
    return series


def _times(steps: Sequence[Line]) -> Table:
    """A row with a bar for each phase, a row for the whole step, and the parallel work."""

    total = sum(line["time/step"] for line in steps)
    sampled = sum(line.get("tokens/sampled") or 0.0 for line in steps)
    times = table("phase", right=("s a step", "share", "tokens/s"))
    times.add_column()

    def add_row(name: str, seconds: float, bar: str = "", style: str | None = None) -> None:
        speed = number(sampled / seconds, 0)
        share = f"{seconds / total:.1%}"
        times.add_row(name, number(seconds / len(steps)), share, speed, bar, style=style)

    for name, seconds in phase_seconds(steps).items():
        add_row(name, seconds, "█" * round(30 * seconds / total))
    times.add_section()
    add_row("step", total, style="bold")
    for name, key in PARALLEL.items():
        seconds = sum(line.get(key) or 0.0 for line in steps)
        if seconds:
            add_row(name, seconds, style="dim")
    return times


def _draw_charts(console: Console, lines: Sequence[Line]) -> None:
    """A chart for each metric that changed."""

    width = max(20, min(console.width - 12, 72))
    for name, points in metric_series(lines).items():
        if len({value for _, value in points}) > 1:
            console.print(Text(f"\n          {name}", style="bold"))
            draw_chart(console, points, width=width, height=4)
    console.print()
