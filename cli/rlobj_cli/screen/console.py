"""What all commands show in the same way: waiting, facts, YAML, explanations and numbers."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from rlobj.base.errors import Message
from rlobj.reporting import visible
from rlobj_cli.screen.errors import typed

if TYPE_CHECKING:
    from rlobj.objectives.explanation import Explanation


T = TypeVar("T")


class Screen(Console):
    """A console whose text is data: control characters in it are shown as symbols.

    So no name, path, rule or text of a run, a preset or a model moves the cursor, whoever prints
    it. Styles and the cursor of rich are no text.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of what is printed."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(shown_lines(segment.text), segment.style)


def shown_lines(text: str) -> str:
    """Text on several lines in which every other control character is a symbol."""
    return "\n".join(map(visible, text.split("\n")))


def calm_libraries(console: Console) -> None:
    """Hide progress bars and notices of other libraries, and show rlobj's own warnings."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if "transformers" in sys.modules:  # otherwise it reads the variables
        from transformers.utils import logging as notices

        notices.disable_progress_bar()
        notices.set_verbosity_error()
    warnings.filterwarnings("ignore", module=r"(torch|transformers|accelerate|datasets)\b.*")
    handler = RichHandler(
        console=console, level=logging.WARNING, show_time=False, show_path=False, markup=False
    )
    handler.addFilter(_as_typed)
    logger = logging.getLogger("rlobj")
    logger.handlers, logger.propagate = [handler], False


def _as_typed(record: logging.LogRecord) -> bool:
    """Write a warning as the program's messages are."""
    if isinstance(record.msg, Message):
        record.msg = typed(record.msg)
    return True


@contextlib.contextmanager
def working(
    console: Console, doing: str = "loading", news: Callable[[], str] = str
) -> Iterator[None]:
    """Show what is going on and for how many seconds; only on a terminal, and removed at the end.

    Args:
        console: the screen.
        doing: what is going on; importing the library takes seconds.
        news: called four times per second for a line to show below; "" = no line.
    """
    if not console.is_interactive:
        yield
        return
    spinner, began = Spinner("dots", style="cyan"), time.monotonic()

    def shown() -> Group:
        spinner.update(text=Text(f"{doing}, {time.monotonic() - began:.0f} s"))
        line = Text(f"  {news()}", style="dim", no_wrap=True, overflow="ellipsis")
        return Group(spinner, *([line] if line.plain.strip() else []))

    with Live(get_renderable=shown, console=console, transient=True, refresh_per_second=4):
        yield


@contextlib.contextmanager
def reading(doing: str, console: Console | None = None) -> Iterator[Callable[..., None]]:
    """A bar from the first progress on; only on a terminal, and removed at the end.

    Args:
        doing: what is going on.
        console: the screen; None = stderr.

    Yields:
        A function to call with (done, total), and perhaps a note.
    """
    console = console or Screen(stderr=True)
    note = TextColumn("{task.fields[note]}", markup=False)
    columns = (TextColumn(doing, markup=False), BarColumn(), MofNCompleteColumn(), note)
    hidden = not console.is_interactive
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden
    ) as bar:
        task = bar.add_task("", visible=False, note="")

        def move(done: int, total: int, note: str = "") -> None:
            bar.update(task, completed=done, total=total, visible=True, note=note)

        yield move


@contextlib.contextmanager
def preparing_policy(console: Console) -> Iterator[Callable[[int, int, float], None]]:
    """Show the supervised training of the embedded policy; nothing if the policy is in the cache.

    Yields:
        A function to call after each step with (steps done, number of steps, loss).
    """
    doing = "first use: preparing the embedded policy"
    with reading(doing, console) as move:

        def progress(done: int, total: int, loss: float) -> None:
            move(done, total)
            if console.is_interactive:
                return
            if done == total:
                say(console, Text(f"the embedded policy is ready, loss {loss:.3f}"))
            elif done == 1:
                steps = f"({total} supervised steps, kept for later runs)"
                say(console, Text(f"{doing} {steps}"))

        yield progress


class Stages:
    """A callback that shows one thing after another; the next one ends the one before."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._shown = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def stage(self, what: AbstractContextManager[T]) -> T:
        """Show it in place of what is shown now."""
        self._shown.close()
        return self._shown.enter_context(what)

    def warm_starting(self, done: int, total: int, loss: float) -> None:
        """Show the supervised steps that make the embedded policy."""
        if done == 1:
            self._prepare = self.stage(preparing_policy(self.console))
        self._prepare(done, total, loss)


def say(console: Console, text: Text) -> None:
    """Print prose: in lines of whole words on a terminal, and as one line in a log."""
    console.print(text, soft_wrap=not console.is_terminal)


def show_page(console: Console, path: Path) -> None:
    """Print where a page was written."""
    size = path.stat().st_size / 1e6
    console.print(Text(f"{path}  {size:.1f} MB, opens in a browser"), soft_wrap=True)


def table(*left: str, right: Sequence[str] = ()) -> Table:
    """An empty table: titles of columns of text, then of columns of numbers."""
    columns = [Column(Text(title), overflow="fold") for title in left]
    columns += [Column(Text(title), overflow="fold", justify="right") for title in right]
    return Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)


def facts_grid(facts: Mapping[str, str]) -> Table:
    """Names and texts in two columns, for printing."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", min_width=10)
    grid.add_column(overflow="fold")
    for name, text in facts.items():
        grid.add_row(Text(f"  {visible(name)}"), Text(shown_lines(text)))
    return grid


def show_markdown(console: Console, text: str) -> None:
    """Print Markdown whose names are data: control characters are shown as symbols."""
    from rich.markdown import Markdown

    console.print(Markdown(shown_lines(text)))


def show_yaml(console: Console, text: str) -> None:
    """Print YAML, in colour on a terminal; otherwise as plain text that can be read back."""
    text = shown_lines(text.expandtabs())
    if not console.is_terminal:
        console.print(Text(text.rstrip("\n")), soft_wrap=True)
        return
    from rich.syntax import Syntax

    console.print(
        Syntax(text, "yaml", theme="ansi_dark", background_color="default", word_wrap=True)
    )


def show_explanation(console: Console, explanation: Explanation) -> None:
    """Print the formula, the rules, the columns that are read, and settings without effect."""
    text = Text(shown_lines(str(explanation)))
    text.highlight_regex(r"(?m)^(\w+(?=  |:)|loss.* = .*)", "bold cyan")
    text.highlight_regex(r"(?m)^\w+ reads .*", "dim")
    text.highlight_regex(r"(?m)^no effect:", "bold yellow")
    say(console, text)


def plain_value(value: Any) -> str:
    """Format a setting on one line, as in YAML."""
    from rlobj.base.yaml import dump_yaml

    text = dump_yaml(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def number(value: float | None, digits: int = 3) -> str:
    """Format a number for the screen; a dash if there is none."""
    if value is None or math.isnan(value):
        return "–"
    if value and abs(value) < 10**-digits:
        return f"{value:.1e}"
    return f"{value:,.{digits}f}"
