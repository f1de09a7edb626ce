"""The screen of a run: a live panel on a terminal, plain lines elsewhere.

The progress of an evaluation on screen.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from rlobj.base.files import nearby
from rlobj.config.run_folder import measure_of
from rlobj.evaluation import EvaluationCallback, EvaluationResult
from rlobj.reporting import visible
from rlobj.training import Callback
from rlobj_cli.screen import console as screen
from rlobj_cli.screen.console import Stages, facts_grid, number, say, working
from rlobj_cli.screen.options import read_toml

if TYPE_CHECKING:
    from rlobj.evaluation import BenchmarkSummary
    from rlobj.insight import Finding


ONE_THREAD = "; small policies are fastest on one (change with --set training.threads=N)"

MEASURES, TURNS = ([tuple(row) for row in read_toml("tables")[x]] for x in ("measures", "turns"))
"""Name in a table, text in a line, name in metrics.jsonl, digits after the point; `TURNS` are those
of conversations."""

RECENT = 20
"""Steps whose mean duration is the estimate for the steps to come."""


def open_screen(console: Console, *more: Any) -> Screen:
    """A live screen on an interactive console, a plain one on any other; arguments as `Screen`."""
    return (LiveScreen if console.is_interactive else PlainScreen)(console, *more)


class Screen(Stages, Callback):
    """Collects the metrics of a run; subclasses show them. A context manager.

    `rlobj train` calls it as a callback, and `rlobj watch` adds the lines of metrics.jsonl.

    Args:
        console: the console.
        steps: steps of the whole run.
        done: steps before this session.
        history: lines of metrics.jsonl so far.
        header: prints the header. It is called before the first output, so that a run that is
            refused prints no header.

    Attributes:
        steps: steps of the whole run.
        done: the newest step.
        ended: when this step ended, in seconds as `time.time` counts them.
        history: lines of metrics.jsonl so far.
    """

    def __init__(
        self,
        console: Console,
        steps: int,
        done: int,
        history: Sequence[Mapping[str, Any]],
        header: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(console)
        self.steps, self.done, self.header = steps, done, header
        self.history: list[Mapping[str, Any]] = list(history)
        self.ended = time.time()
        self.told: set[str] = set()

    def begin(self) -> None:
        """Print the header, the first time."""
        header, self.header = self.header, lambda: None
        header()

    def warm_starting(self, done: int, total: int, loss: float) -> None:
        """Print the header, and show the supervised steps that make the embedded policy."""
        self.begin()
        super().warm_starting(done, total, loss)

    def started(self, facts: Mapping[str, str]) -> None:
        """Show policy, problems, device and so on."""
        self.begin()
        self._shown.close()
        self.ended = time.time()
        device = facts["device"]
        shown = {**facts, "device": device + ONE_THREAD * device.endswith(" 1 thread")}
        self.console.print(facts_grid(shown))
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
        self.ended = time.time()

    def found(self, finding: Finding) -> None:
        """Say on one line what the diagnosis has found, the first time."""
        if finding.name not in self.told:
            self.told.add(finding.name)
            line = Text.assemble((f"step {finding.since}: {finding.name}", "bold red"))
            say(self.console, line.append(f": {visible(finding.evidence)}", "red"))

    @property
    def measures(self) -> list[tuple[str, str, str, int]]:
        """`MEASURES`, and after the reward the means of several ones, the held-out measure, and
        those of `TURNS` that are not 0."""
        keys = self.history[-1] if self.history else ()
        several = [key for key in keys if key.startswith("reward/") and key.count("/") == 2]
        names = [f"reward {visible(key.split('/')[1])}" for key in several]
        texts = [f"{name.replace('{', '{{').replace('}', '}}')} {{}}" for name in names]
        own = [(*each, 3) for each in zip(names, texts, several, strict=True)]
        key, name = measure_of(self.history)
        held_out = (name, f"{name} {{}}", key, 3)
        turns = [row for row in TURNS if any(self.series(row[2]))]
        return [MEASURES[0], *own, held_out, *turns, *MEASURES[1:]]

    def series(self, key: str) -> list[float]:
        """All values of a metric so far."""
        values = [line.get(key) for line in self.history]
        return [value for value in values if value is not None and value == value]

    def course(self, key: str) -> list[float]:
        """A value for each step since the first one; the last one where a step has none."""
        known: list[float] = []
        for line in self.history:
            value = line.get(key)
            known += known[-1:] if value is None or value != value else [value]
        return known

    def times(self) -> tuple[str, str]:
        """How long the steps took until now, and how long the others will take, in words."""
        seconds, waiting = self.series("time/step"), time.time() - self.ended
        left = "– left"
        if recent := seconds[-RECENT:]:
            mean, steps = sum(recent) / len(recent), self.steps - self.done
            left = f"{clock(mean * steps - min(waiting, mean))} left"
            if steps == 1 and waiting > mean:
                left = "last step"
        return clock(sum(seconds) + waiting * (self.done < self.steps)), left

    def wait_for(self, what: str) -> None:
        """Say what the run of another process waits for; "" = nothing."""

    def close(self) -> None:
        """Leave the newest numbers of such a run on the screen."""


class PlainScreen(Screen):
    """Prints a line now and then, without control characters: for log files."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._every = max(1, self.steps // 20)
        self._newest, self._waiting = 0, ""

    def add(self, line: Mapping[str, Any]) -> None:
        """Print a line after each twentieth of the run and after each evaluation."""
        super().add(line)
        key, name = measure_of([line])
        if self.done == 0:
            self._line(f"{self._name()}  {name} {held_out(line)}")
        elif self.done % self._every == 0 or self.done == self.steps or key in line:
            self.show()

    def show(self) -> None:
        """Print the newest step."""
        line, self._newest = self.history[-1], self.done
        parts = [self._name()]
        for _, text, key, digits in self.measures:
            if not key.startswith("eval/"):
                parts.append(text.format(number(line.get(key), digits)))
            elif key in line:
                parts.append(text.format(held_out(line)))
        self._line("  ".join([*parts, self.times()[1]]))

    def wait_for(self, what: str) -> None:
        """Print it, once."""
        before, self._waiting = self._waiting, what
        if what not in ("", before):
            self._line(what)

    def close(self) -> None:
        """Print the newest step, if it is not there yet."""
        if self.done > self._newest:
            self.show()

    def _name(self) -> str:
        return f"step {self.done:>{len(str(self.steps))}}/{self.steps}"

    def _line(self, text: str) -> None:
        say(self.console, Text(text))


class LiveScreen(Screen):
    """Shows a progress bar with the time left, and the metrics with their history."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[times]}"),
            TextColumn("[dim]{task.fields[doing]}"),
            console=self.console,
            expand=True,
        )
        self._task = self._bar.add_task("steps", total=self.steps, doing="", times="")
        self._live = Live(
            get_renderable=self.panel, console=self.console, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        self.stage(working(self.console))
        return self

    def started(self, facts: Mapping[str, str]) -> None:
        """Show the panel of the run from now on."""
        super().started(facts)
        self.stage(self._live)

    def phase(self, name: str) -> None:
        """Show the stage at the end of the bar."""
        self._bar.update(self._task, doing=f"{name:<10}")

    def wait_for(self, what: str) -> None:
        """Show it at the end of the bar."""
        if not self._live.is_started:
            self.stage(self._live)
        self.phase(what)

    def close(self) -> None:
        """Print the table."""
        if self.history:
            self.console.print(self._table())

    def panel(self) -> Group:
        """The bar, and a table of the metrics."""
        elapsed, left = self.times()
        times = f"{elapsed}  {left}"
        self._bar.update(self._task, completed=self.done, total=self.steps, times=times)
        return Group(self._bar, self._table())

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
        table.add_column("")
        table.add_column("first", justify="right")
        table.add_column("now", justify="right", style="bold")
        table.add_column("history", style="cyan", no_wrap=True)
        room = max(10, self.console.width - 48)
        for name, _, key, digits in self.measures:
            values = self.series(key)
            first, now = (number(values[i], digits) if values else "–" for i in (0, -1))
            table.add_row(Text(name), first, now, sparkline(self.course(key), room))
        return table


def held_out(line: Mapping[str, Any]) -> str:
    """The held-out accuracy or reward ± its standard error over samples, or over problems."""
    measure = measure_of([line])
    value, error = number(line.get(measure.key)), measure.error(line, math.nan)
    return value if math.isnan(error) else f"{value} ± {number(error)}"


def clock(seconds: float) -> str:
    """A duration as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


_BLOCKS = "▁▂▃▄▅▆▇█"


def resample(values: Sequence[float], width: int) -> list[float]:
    """Reduce the values to at most `width` numbers, means of neighbours."""
    count = min(len(values), width)
    cuts = [i * len(values) // count for i in range(count + 1)] if count else [0]
    parts = [values[a:b] for a, b in itertools.pairwise(cuts)]
    return [sum(part) / len(part) for part in parts]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the values in one line, scaled from the smallest to the largest.

    Example:
        >>> sparkline([0, 1, 2, 3], 8)
        '▁▃▅█'
    """
    values = resample(values, width)
    if not values:
        return ""
    low, span = min(values), max(values) - min(values)
    return "".join(_BLOCKS[round((v - low) / span * 7) if span else 0] for v in values)


EVERY = 30.0
"""Seconds between two lines without a terminal."""


class EvaluationScreen(screen.Stages, EvaluationCallback):
    """Shows the events of an evaluation.

    Args:
        console: the screen.
        command: the command's name, for the header; None = no header.
        doing: text in front of a benchmark's name while it is graded.
    """

    def __init__(self, console: Console, command: str | None = None, doing: str = "") -> None:
        super().__init__(console)
        self._command, self._doing = command, doing
        self._benchmark, self._drawn = "", 0
        self._printed = time.monotonic()

    def _follow(self, benchmark: str) -> None:
        """Show a bar for a benchmark; it appears with its first update."""
        if self._benchmark != benchmark:
            self._benchmark, self._drawn = benchmark, 0
            self._move = self.stage(screen.reading(self._doing + benchmark, self.console))

    def _line(self, text: str) -> None:
        """Without a terminal, print a line now and then."""
        if not self.console.is_interactive and time.monotonic() - self._printed > EVERY:
            self._printed = time.monotonic()
            self.console.print(Text(f"  {self._doing}{self._benchmark}: {text}"))

    def started(self, name: str) -> None:
        """Print the header, and show a spinner."""
        if self._command:
            self.console.print(
                Text.assemble((self._command, "bold"), "  ", (name, "bold cyan")), soft_wrap=True
            )
        self.stage(screen.working(self.console, f"loading {name}"))

    def ready(self, facts: Mapping[str, str]) -> None:
        """Print the facts."""
        self._shown.close()
        self.console.print(screen.facts_grid(facts))

    def noted(self, text: str, *, warning: bool = False) -> None:
        """Print the text."""
        self.console.print(Text(f"  {text}", style="yellow" if warning else "dim"))

    def sampled(self, benchmark: str, responses: int) -> None:
        """Count the responses; they count as done when they are graded."""
        self._follow(benchmark)
        self._drawn += responses
        self._line(f"{self._drawn:,} responses sampled")

    def graded(self, benchmark: str, done: int, total: int, accuracy: float) -> None:
        """Move the bar."""
        note = "" if math.isnan(accuracy) or self._doing else f"{accuracy:.1%} right"
        self._follow(benchmark)
        self._move(done, total, note)
        self._line(f"{done:,}/{total:,}  {note}")

    def interrupted(self, stored: int, total: int) -> None:
        """Print how much is stored."""
        self._shown.close()
        kept = f"{stored:,} of {total:,} responses are stored"
        self.console.print(Text(f"\n{kept}; the same command continues from there"))

    def finished(self, result: EvaluationResult) -> None:
        """Print what another grading changed, what is missing, the table, and the files."""
        self._shown.close()
        if result.regrading is not None:
            screen.show_markdown(self.console, result.regrading.to_markdown())
            where = f"wrote {nearby(result.regrading.path)}"
            self.console.print(Text(where), soft_wrap=True)
        if result.unfinished:
            self.console.print(Text(f"Not finished: {result.unfinished}", style="yellow"))
        screen.show_markdown(self.console, result.to_markdown())
        where = result.path and nearby(result.path)
        written = f"wrote results.json, results.md and report.html to {where}"
        self.console.print(Text(written), soft_wrap=True)
