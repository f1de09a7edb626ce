"""The screen of a run: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlobj.base.launched import first_process
from rlobj.reporting.terminal import Stages, bystander, facts_grid, number, say, working
from rlobj.runs.metrics import measure_of
from rlobj.training.loop.callbacks import Callback
from rlobj.training.resumed_run import how_to_go_on

if TYPE_CHECKING:
    from rlobj.evaluation import GradedBenchmark
    from rlobj.insight import Finding
    from rlobj.training.loop.result import TrainingResult
    from rlobj.training.resolving import ResolvedRun


SHOWN = [
    ("reward", "reward/mean", 3),
    ("turns", "turns/mean", 2),
    ("with a call", "tools/used_share", 3),
    ("entropy, nats", "policy/entropy", 3),
    ("value explains", "value/explained_variance", 3),
    ("value warm-up", "value/warmup", 0),
    ("tokens kept", "objective/kept_fraction", 4),
    ("tokens clipped", "objective/clip_fraction", 4),
    ("gradient norm", "train/grad_norm", 3),
    ("response length", "response/length_mean", 1),
    ("sampler gap, nats", "sampler/logprob_gap", 3),
    ("tokens/s", "tokens/per_second", 0),
]
"""Name on the screen, name in metrics.jsonl, digits after the point. What a run
has no value of is not shown."""

EVERY = 10.0
"""Seconds without a line in a log after which the next step has one."""
RECENT = 20
"""Steps since this start whose mean duration is the estimate for the steps to come."""


class RunScreen(Stages, Callback):
    """Shows a run: a bar and a table on a terminal, else a line now and then, as in a log file.

    A callback and a context manager.

    Args:
        console: the console.

    Attributes:
        run: the run; None until its settings are checked.
        steps: steps of the whole run.
        done: the newest step.
        ended_at: when this step ended, in seconds as `time.time` counts them.
        history: lines of metrics.jsonl so far.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.run: ResolvedRun | None = None
        self.steps = self.done = 0
        self.history: list[Mapping[str, Any]] = []
        self.ended_at = self._printed = time.time()
        self._findings: set[str] = set()
        self._phase, self._begun, self._before = "", False, 0

    def __enter__(self) -> Self:
        self.stage(working(self.console, "reading the settings"))
        return self

    def opened(self, run: ResolvedRun) -> None:
        """Begin with the steps that the run has."""
        self.run, self.steps, self.done = run, run.config.training.steps, run.done
        self.history = list(run.history())
        self._before = len(self.series("time/step"))  # on another machine, perhaps

    def header(self, run: ResolvedRun) -> None:
        """Print what begins; the screen of the program does."""

    def results(self, run: ResolvedRun, result: TrainingResult) -> None:
        """Print the results of a run whose steps are all done; the screen of the program does."""

    def begin(self) -> None:
        """Print the header before the first output: a run that is refused has none."""
        if self.run is not None and not self._begun:
            self._begun = True
            self.header(self.run)

    def hand_over(self) -> None:
        """Print the header and what was chosen, and leave the terminal to the new processes."""
        self.begin()
        if self.run is not None and self.run.chosen:
            self.console.print(facts_grid({"chosen": self.run.chosen}))
        self._shown.close()

    def ended(self, result: TrainingResult) -> None:
        """Print the results; how to go on with a run that was interrupted."""
        self._shown.close()
        if self.run is not None and result.steps == self.steps:
            self.results(self.run, result)
        elif self.run is not None:
            advice = Text(how_to_go_on(self.run), style="yellow")
            self.console.print(advice, soft_wrap=True)

    def started(self, facts: Mapping[str, str]) -> None:
        """Show policy, problems, device and so on; on a terminal, from now on the panel."""
        self.begin()
        self._shown.close()
        self.ended_at = time.time()
        self.console.print(facts_grid(facts))
        self.console.print()
        if self.console.is_interactive:
            self.stage(
                Live(
                    get_renderable=self.panel,
                    console=self.console,
                    refresh_per_second=4,
                    transient=True,
                    redirect_stdout=sys.stdout.isatty(),
                )
            )

    def phase(self, name: str) -> None:
        """Show the stage at the end of the bar."""
        self._phase = name

    def evaluated(self, step: int, benchmark: GradedBenchmark) -> None:
        """Add the evaluation before the first step; later ones arrive with `stepped`."""
        if step == 0:
            self.stepped(0, {"step": 0, **benchmark.metrics()})

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add a line of metrics.jsonl.

        Off a terminal, it is printed after each twentieth of the run and each evaluation, and when
        none was printed for 10 s.
        """
        self.history.append(metrics)
        self.done, self.ended_at = step, time.time()
        due = self.done % max(1, self.steps // 20) == 0 or self.ended_at - self._printed > EVERY
        due = due or self.done == self.steps or measure_of([metrics]).key in metrics
        if due and not self.console.is_interactive:
            self._printed = self.ended_at
            say(self.console, Text(self._line(metrics)))

    def found(self, finding: Finding) -> None:
        """Say on one line what the diagnosis has found, the first time."""
        if finding.name not in self._findings:
            self._findings.add(finding.name)
            line = Text.assemble((f"step {finding.since}: {finding.name}", "bold red"))
            say(self.console, line.append(f": {finding.evidence}", "red"))

    def rows(self) -> list[tuple[str, str, int]]:
        """What is shown: those of `SHOWN` with a value, each reward, and the held-out measure."""
        keys = self.history[-1] if self.history else ()
        rewards = [key for key in keys if key.startswith("reward/") and key.count("/") == 2]
        more = [(f"reward {key.split('/')[1]}", key, 3) for key in rewards]
        measure = measure_of(self.history)
        rows = [SHOWN[0], *more, (measure.name, measure.key, 3), *SHOWN[1:]]
        return [row for row in rows if self.series(row[1])]

    def series(self, key: str) -> list[float]:
        """All values of a metric so far."""
        values = [line.get(key) for line in self.history]
        return [value for value in values if value is not None and value == value]

    def times(self) -> tuple[str, str]:
        """How long the steps took until now, and how long the others will take, in words."""
        seconds, waiting = self.series("time/step"), time.time() - self.ended_at
        left = "– left"
        if recent := seconds[self._before :][-RECENT:]:
            mean = sum(recent) / len(recent)
            left = f"{clock(mean * (self.steps - self.done) - min(waiting, mean))} left"
        return clock(sum(seconds) + waiting * (self.done < self.steps)), left

    def _line(self, line: Mapping[str, Any]) -> str:
        """A line of metrics in words."""
        parts = [f"step {self.done:>{len(str(self.steps))}}/{self.steps}"]
        for name, key, digits in self.rows():
            if key in line:
                text = held_out(line) if key.startswith("eval/") else number(line[key], digits)
                parts.append(f"{name} {text}")
        return "  ".join([*parts, *([self.times()[1]] if self.done else ())])

    def panel(self) -> Group:
        """A bar with the times, and a table of the first and the newest metrics."""
        done = ProgressBar(total=max(self.steps, 1), completed=self.done)
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(style="bold")
        bar.add_column(ratio=1)
        bar.add_column()
        bar.add_column(style="dim", min_width=10)
        bar.add_row(f"steps {self.done}/{self.steps}", done, "  ".join(self.times()), self._phase)
        table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
        table.add_column("")
        table.add_column("first", justify="right")
        table.add_column("now", justify="right", style="bold")
        for name, key, digits in self.rows():
            text = partial(number, digits=digits)
            if key.startswith("eval/"):
                text = measure_of(self.history).text
            values = self.series(key)
            table.add_row(Text(name), text(values[0]), text(values[-1]))
        return Group(bar, table)


@contextlib.contextmanager
def shown(progress: bool | RunScreen) -> Iterator[RunScreen | None]:
    """The screen of a run; None if no progress is asked for, or another process shows it.

    Args:
        progress: True = on stderr; or a screen.
    """
    if progress is False or not first_process():
        yield None
        return
    with RunScreen(bystander()) if progress is True else progress as screen:
        yield screen


def held_out(line: Mapping[str, Any]) -> str:
    """The held-out accuracy or reward ± its standard error over samples, or over problems."""
    measure = measure_of([line])
    value, error = line.get(measure.key), measure.error(line, math.nan)
    text = "–" if value is None or math.isnan(value) else measure.text(value)
    return text if math.isnan(error) else f"{text} ± {measure.text(error)}"


def clock(seconds: float) -> str:
    """A duration as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
