"""The screen of a run: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rlobj.training import Callback
from rlobj_cli.screen.charts import sparkline
from rlobj_cli.screen.console import (
    FIRST_USE,
    facts_grid,
    number,
    preparation_line,
    say,
)

if TYPE_CHECKING:
    from rlobj.evaluation import BenchmarkSummary
    from rlobj.insight import Finding

ONE_THREAD = "; small policies are fastest on one (change with --set training.threads=N)"

MEASURES = (
    ("reward", "reward/mean", 3),
    ("held-out accuracy", "eval/accuracy", 3),
    ("entropy, nats", "policy/entropy", 3),
    ("tokens kept", "objective/kept_fraction", 4),
    ("tokens clipped", "objective/clip_fraction", 4),
    ("largest ratio", "policy/ratio_max", 2),
    ("gradient norm", "train/grad_norm", 3),
    ("learning rate", "train/learning_rate", 3),
    ("response length", "response/length_mean", 1),
    ("sampler gap, nats", "sampler/logprob_gap", 3),
    ("tokens/s", "tokens/per_second", 0),
)
"""Name on the screen, name in metrics.jsonl, digits after the point."""


def watch(
    console: Console,
    steps: int,
    done: int,
    history: Sequence[Mapping[str, Any]],
    header: Callable[[], None] = lambda: None,
) -> Screen:
    """A live screen on an interactive console, a plain one on any other.

    Args:
        console: the console.
        steps: steps of the whole run.
        done: steps before this session.
        history: lines of metrics.jsonl so far.
        header: prints the header. It is called before the first output, so that a run that is
            refused prints no header.
    """
    kind = LiveScreen if console.is_interactive else PlainScreen
    return kind(console, steps, done, history, header)


class Screen(Callback):
    """Collects the metrics of a run; subclasses show them. A context manager."""

    def __init__(
        self,
        console: Console,
        steps: int,
        done: int,
        history: Sequence[Mapping[str, Any]],
        header: Callable[[], None] = lambda: None,
    ) -> None:
        self.console = console
        self.steps = steps
        self.first = done
        self.done = done
        self.history: list[Mapping[str, Any]] = list(history)
        self.doing = ""
        self.header = header
        self._told: set[str] = set()
        self._begun = self._sampling = self._trained = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def begin(self) -> None:
        """Print the header, the first time."""
        header, self.header = self.header, lambda: None
        header()

    def warm_starting(self, done: int, total: int, loss: float) -> None:
        """Print the header."""
        self.begin()

    def started(self, facts: Mapping[str, str]) -> None:
        """Show policy, problems, device and so on."""
        self.begin()
        self._begun = time.perf_counter()
        device = facts["device"]
        shown = {**facts, "device": device + ONE_THREAD * device.endswith(" 1 thread")}
        self.console.print(facts_grid({k: v for k, v in shown.items() if k != "reference"}))
        self.console.print()

    def phase(self, name: str) -> None:
        """Note the time at which each stage begins."""
        self.doing = name
        self._trained = time.perf_counter()
        if name == "sampling":
            self._sampling = self._trained

    def evaluated(self, step: int, summary: BenchmarkSummary) -> None:
        """Add the evaluation before the first step; later ones arrive with `stepped`."""
        if step == 0:
            self.history.append({"step": 0, **summary.metrics()})

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of a step, and its speed without the time of an evaluation."""
        ended = self._trained if self.doing == "evaluating" else time.perf_counter()
        speed = metrics["tokens/step"] / max(ended - self._sampling, 1e-9)
        self.history.append({**metrics, "tokens/per_second": speed})
        self.done = step

    def found(self, finding: Finding) -> None:
        """Say on one line what the diagnosis has found, the first time."""
        if finding.name not in self._told:
            self._told.add(finding.name)
            line = Text.assemble((f"step {finding.since}: {finding.name}", "bold red"))
            say(self.console, line.append(f": {finding.evidence}", "red"))

    @property
    def rewards(self) -> dict[str, str]:
        """The names of several rewards -> their means in metrics.jsonl."""
        keys = [key for key in self.history[-1] if key.count("/") == 2] if self.history else []
        return {f"reward {key.split('/')[1]}": key for key in keys if key.startswith("reward/")}

    def series(self, key: str) -> list[float]:
        """All values of a metric so far."""
        values = [line.get(key) for line in self.history]
        return [value for value in values if value is not None and value == value]


class PlainScreen(Screen):
    """Prints a line now and then, without control characters: for log files."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._every = max(1, self.steps // 20)

    def warm_starting(self, done: int, total: int, loss: float) -> None:
        """Print one line at the start and one at the end."""
        super().warm_starting(done, total, loss)
        if done in (1, total):
            self._line(preparation_line(done, total, loss))

    def evaluated(self, step: int, summary: BenchmarkSummary) -> None:
        """Print the evaluation before the first step."""
        super().evaluated(step, summary)
        if step == 0:
            self._line(f"step {0:>{len(str(self.steps))}}/{self.steps}  {self._held_out()}")

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Print a line after each twentieth of the run and after each evaluation."""
        super().stepped(step, metrics)
        if step % self._every and step != self.steps and "eval/accuracy" not in metrics:
            return
        line = self.history[-1]
        left = (time.perf_counter() - self._begun) / (step - self.first) * (self.steps - step)
        parts = [
            f"step {step:>{len(str(self.steps))}}/{self.steps}",
            f"reward {number(line.get('reward/mean'))}",
            *(f"{name} {number(line.get(key))}" for name, key in self.rewards.items()),
            self._held_out() if "eval/accuracy" in metrics else "",
            f"entropy {number(line.get('policy/entropy'))}",
            f"kept {number(line.get('objective/kept_fraction'), 4)}",
            f"clipped {number(line.get('objective/clip_fraction'), 4)}",
            f"max ratio {number(line.get('policy/ratio_max'), 2)}",
            f"grad norm {number(line.get('train/grad_norm'))}",
            f"lr {number(line.get('train/learning_rate'))}",
            f"length {number(line.get('response/length_mean'), 1)}",
            f"gap {number(line.get('sampler/logprob_gap'))}",
            f"{number(line.get('tokens/per_second'), 0)} tokens/s",
            f"{_clock(left)} left",
        ]
        self._line("  ".join(part for part in parts if part))

    def _held_out(self) -> str:
        return f"held-out accuracy {held_out(self.history[-1])}"

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
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[doing]}"),
            console=self.console,
            expand=True,
        )
        self._task = self._bar.add_task("steps", total=self.steps, completed=self.done, doing="")
        spinner = Spinner("dots", "loading")
        self._shown: Callable[[], RenderableType] = lambda: spinner
        self._live = Live(
            get_renderable=lambda: self._shown(),
            console=self.console,
            refresh_per_second=4,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def warm_starting(self, done: int, total: int, loss: float) -> None:
        """Show a progress bar for the supervised training."""
        super().warm_starting(done, total, loss)
        if done == 1:
            warm = Progress(TextColumn(FIRST_USE), BarColumn(), MofNCompleteColumn())
            warm.add_task("", total=total)
            self._warm, self._shown = warm, lambda: warm
        self._warm.update(self._warm.task_ids[0], completed=done)

    def started(self, facts: Mapping[str, str]) -> None:
        """Show the panel of the run from now on."""
        super().started(facts)
        self._bar.reset(self._task, completed=self.done)
        self._shown = self._dashboard

    def phase(self, name: str) -> None:
        """Show the stage at the end of the bar."""
        super().phase(name)
        self._bar.update(self._task, doing=f"{name:<10}")

    def stepped(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Move the bar; the table is redrawn by itself."""
        super().stepped(step, metrics)
        self._bar.update(self._task, completed=step)

    def _dashboard(self) -> Group:
        table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
        table.add_column("")
        table.add_column("first", justify="right")
        table.add_column("now", justify="right", style="bold")
        table.add_column("history", style="cyan", no_wrap=True)
        room = max(10, self.console.width - 48)
        several = [(name, key, 3) for name, key in self.rewards.items()]
        for name, key, digits in (MEASURES[0], *several, *MEASURES[1:]):
            values = self.series(key)
            first, now = (number(values[i], digits) if values else "–" for i in (0, -1))
            table.add_row(name, first, now, sparkline(values, room))
        return Group(self._bar, table)


def held_out(line: Mapping[str, Any] | None) -> str:
    """The held-out accuracy ± its standard error over samples, or else over problems."""
    if line is None:
        return "–"
    errors = [line.get(f"eval/accuracy_se_{over}") for over in ("samples", "problems")]
    known = [error for error in errors if error is not None and not math.isnan(error)]
    accuracy = number(line.get("eval/accuracy"))
    return f"{accuracy} ± {number(known[0])}" if known else accuracy


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
