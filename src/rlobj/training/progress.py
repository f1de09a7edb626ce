"""The screen of a run: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from rlobj.base.errors import ConfigError
from rlobj.base.launched import first_process
from rlobj.reporting import visible
from rlobj.reporting.terminal import Stages, bystander, facts_grid, number, say, working
from rlobj.runs.metrics import measure_of
from rlobj.training.ending import how_to_go_on
from rlobj.training.loop.callbacks import Callback

if TYPE_CHECKING:
    from rlobj.evaluation import BenchmarkSummary
    from rlobj.insight import Finding
    from rlobj.training.loop.result import TrainingResult
    from rlobj.training.opened_run import OpenedRun


MEASURES = [
    ("reward", "reward {}", "reward/mean", 3),
    ("entropy, nats", "entropy {}", "policy/entropy", 3),
    ("tokens kept", "kept {}", "objective/kept_fraction", 4),
    ("tokens clipped", "clipped {}", "objective/clip_fraction", 4),
    ("largest ratio", "max ratio {}", "policy/ratio_max", 2),
    ("gradient norm", "grad norm {}", "train/grad_norm", 3),
    ("learning rate", "lr {}", "train/learning_rate", 3),
    ("response length", "length {}", "response/length_mean", 1),
    ("sampler gap, nats", "gap {}", "sampler/logprob_gap", 3),
    ("tokens/s", "{} tokens/s", "tokens/per_second", 0),
]
"""Name in a table, text in a line, name in metrics.jsonl, digits after the point."""
TURNS = [
    ("turns", "turns {}", "turns/mean", 2),
    ("with a call", "with a call {}", "tools/used_share", 3),
    ("environment failed", "environment failed {}", "turns/at_broken", 3),
]
"""The same of conversations."""

EVERY = 10.0
"""Seconds without a line in a log after which the next step has one."""
RECENT = 20
"""Steps whose mean duration is the estimate for the steps to come."""


class RunScreen(Stages, Callback):
    """Collects the metrics of a run; subclasses show them. A callback and a context manager.

    Args:
        console: the console.
        header: prints the header. It is called before the first output, so that a run that is
            refused prints no header.
        results: prints the results of a run whose steps are all done.

    Attributes:
        run: the run; None until its settings are checked.
        steps: steps of the whole run.
        done: the newest step.
        ended_at: when this step ended, in seconds as `time.time` counts them.
        history: lines of metrics.jsonl so far.
    """

    def __init__(
        self,
        console: Console,
        header: Callable[[OpenedRun], None] = lambda run: None,
        results: Callable[[OpenedRun, TrainingResult], None] = lambda run, result: None,
    ) -> None:
        super().__init__(console)
        self.run: OpenedRun | None = None
        self.steps = self.done = 0
        self.header, self.results = header, results
        self.history: list[Mapping[str, Any]] = []
        self.ended_at = self._printed = time.time()
        self._findings: set[str] = set()

    def opened(self, run: OpenedRun) -> None:
        """Begin with the steps that the run has."""
        self.run, self.steps, self.done = run, run.config.training.steps, run.done
        self.history = list(run.history())

    def begin(self) -> None:
        """Print the header of the run, the first time."""
        if self.run is not None:
            header, self.header = self.header, lambda run: None
            header(self.run)

    def hand_over(self) -> None:
        """Print the header, and leave the terminal to the processes that train."""
        self.begin()
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
        """Show policy, problems, device and so on."""
        self.begin()
        self._shown.close()
        self.ended_at = time.time()
        self.console.print(facts_grid(facts))
        self.console.print()

    def evaluated(self, step: int, summary: BenchmarkSummary) -> None:
        """Add the evaluation before the first step; later ones arrive with `stepped`."""
        if step == 0:
            self.add({"step": 0, **summary.metrics()})

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of a step."""
        self.add(metrics)

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line of metrics.jsonl."""
        self.history.append(line)
        self.done = line["step"]
        self.ended_at = time.time()

    def found(self, finding: Finding) -> None:
        """Say on one line what the diagnosis has found, the first time."""
        if finding.name not in self._findings:
            self._findings.add(finding.name)
            line = Text.assemble((f"step {finding.since}: {finding.name}", "bold red"))
            say(self.console, line.append(f": {visible(finding.evidence)}", "red"))

    @property
    def measures(self) -> list[tuple[str, str, str, int]]:
        """`MEASURES`, and after the reward the means of several ones, the held-out measure, and
        those of `TURNS` that are not 0."""
        rewards = []
        for key in self.history[-1] if self.history else ():
            if key.startswith("reward/") and key.count("/") == 2:
                name = f"reward {visible(key.split('/')[1])}"
                text = name.replace("{", "{{").replace("}", "}}") + " {}"
                rewards.append((name, text, key, 3))
        key, name = measure_of(self.history)
        turns = [row for row in TURNS if any(self.series(row[2]))]
        return [MEASURES[0], *rewards, (name, f"{name} {{}}", key, 3), *turns, *MEASURES[1:]]

    def series(self, key: str) -> list[float]:
        """All values of a metric so far."""
        values = [line.get(key) for line in self.history]
        return [value for value in values if value is not None and value == value]

    def times(self) -> tuple[str, str]:
        """How long the steps took until now, and how long the others will take, in words."""
        seconds, waiting = self.series("time/step"), time.time() - self.ended_at
        left = "– left"
        if recent := seconds[-RECENT:]:
            mean, steps = sum(recent) / len(recent), self.steps - self.done
            left = f"{clock(mean * steps - min(waiting, mean))} left"
            if steps == 1 and waiting > mean:
                left = "last step"
        return clock(sum(seconds) + waiting * (self.done < self.steps)), left


class PlainScreen(RunScreen):
    """Prints a line now and then, without control characters: for log files."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Print a line after each twentieth of the run and each evaluation, and each 10 s."""
        super().add(line)
        key, name = measure_of([line])
        due = self.done % max(1, self.steps // 20) == 0 or self.ended_at - self._printed > EVERY
        if self.done == 0:
            say(self.console, Text(f"{self._name()}  {name} {held_out(line)}"))
        elif due or self.done == self.steps or key in line:
            self.show()

    def show(self) -> None:
        """Print the newest step."""
        line, self._printed = self.history[-1], self.ended_at
        parts = [self._name()]
        for _, text, key, digits in self.measures:
            if not key.startswith("eval/"):
                parts.append(text.format(number(line.get(key), digits)))
            elif key in line:
                parts.append(text.format(held_out(line)))
        say(self.console, Text("  ".join([*parts, self.times()[1]])))

    def _name(self) -> str:
        return f"step {self.done:>{len(str(self.steps))}}/{self.steps}"


class LiveScreen(RunScreen):
    """Shows a progress bar with the time left, and the metrics with their history."""

    @cached_property
    def _bar(self) -> Progress:
        bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[times]}"),
            TextColumn("[dim]{task.fields[doing]}"),
            console=self.console,
            expand=True,
        )
        bar.add_task("steps", total=self.steps, doing="", times="")
        return bar

    def __enter__(self) -> Self:
        self.stage(working(self.console, "reading the settings"))
        return self

    def started(self, facts: Mapping[str, str]) -> None:
        """Show the panel of the run from now on."""
        super().started(facts)
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
        self._bar.update(self._bar.task_ids[0], doing=f"{name:<10}")

    def panel(self) -> Group:
        """The bar, and a table of the metrics."""
        elapsed, left = self.times()
        [task], times = self._bar.task_ids, f"{elapsed}  {left}"
        self._bar.update(task, completed=self.done, total=self.steps, times=times)
        return Group(self._bar, self._table())

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
        table.add_column("")
        table.add_column("first", justify="right")
        table.add_column("now", justify="right", style="bold")
        for name, _, key, digits in self.measures:
            values, text = self.series(key), partial(number, digits=digits)
            if key.startswith("eval/"):
                text = measure_of(self.history).text
            first, now = (text(values[i]) if values else "–" for i in (0, -1))
            table.add_row(Text(name), first, now)
        return table


@contextlib.contextmanager
def shown(progress: bool | RunScreen) -> Iterator[RunScreen | None]:
    """The screen of a run; None if no progress is asked for, or another process shows it.

    Args:
        progress: True = on stderr; or a screen.

    Raises:
        ConfigError: something else.
    """
    if not isinstance(progress, bool | RunScreen):
        raise ConfigError(
            f"progress is {progress!r}; expected True, False, or a screen of "
            "rlobj.training.progress"
        )
    if progress is False or not first_process():
        yield None
        return
    if progress is True:
        console = bystander()
        progress = screen_of(console)(console)
    with progress:
        yield progress


def screen_of(console: Console) -> type[RunScreen]:
    """A live screen for an interactive console, a plain one for any other."""
    return LiveScreen if console.is_interactive else PlainScreen


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
