"""What is shown on a terminal, or as plain lines in a log: waiting, progress, facts, tables."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self, TextIO, TypeVar, cast

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from rlobj.base.launched import first_process
from rlobj.reporting import visible

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


class _Lasting:
    """A stream that goes on when nobody reads it any more: a closed pipe, a lost terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, if that is possible."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if that is possible."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def bystander() -> Screen:
    """A screen on stderr beside a person's own program, which it never ends."""
    return Screen(file=cast("TextIO", _Lasting(sys.stderr)))


def shown_lines(text: str) -> str:
    """Text on several lines in which every other control character is a symbol."""
    return "\n".join(map(visible, text.split("\n")))


@contextlib.contextmanager
def working(console: Console, doing: str) -> Iterator[None]:
    """Show what is going on and for how many seconds, on a terminal and until the end."""
    if not console.is_interactive:
        yield
        return
    spinner, began = Spinner("dots", style="cyan"), time.monotonic()

    def shown() -> Spinner:
        spinner.update(text=Text(f"{doing}, {time.monotonic() - began:.0f} s"))
        return spinner

    with Live(
        get_renderable=shown,
        console=console,
        transient=True,
        refresh_per_second=4,
        redirect_stdout=sys.stdout.isatty(),  # else a file would lose what others print
    ):
        yield


@contextlib.contextmanager
def importing(*packages: str) -> Iterator[None]:
    """Say on stderr which of these packages are imported inside, which takes seconds.

    Off a terminal it is one line. Nothing is shown for packages that are already imported.
    """
    names = [name for name in packages if name not in sys.modules]
    hidden = not names or not first_process()
    with opening(Screen(stderr=True, quiet=hidden), f"importing {' and '.join(names)}"):
        yield


def opening(console: Console, doing: str) -> AbstractContextManager[None]:
    """`working`, and off a terminal a line."""
    if not console.is_interactive:
        console.print(Text(f"{doing} ..."), soft_wrap=True)
    return working(console, doing)


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
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=hidden,
        redirect_stdout=sys.stdout.isatty(),
    ) as bar:
        task = bar.add_task("", visible=False, note="")

        def move(done: int, total: int, note: str = "") -> None:
            bar.update(task, completed=done, total=total, visible=True, note=note)

        yield move


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

    def opening(self, what: str) -> None:
        """Show what is loaded or opened."""
        self.stage(opening(self.console, what))


def say(console: Console, text: Text) -> None:
    """Print prose: in lines of whole words on a terminal, and as one line in a log."""
    console.print(text, soft_wrap=not console.is_terminal)


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


def number(value: float | None, digits: int = 3) -> str:
    """Format a number for the screen; a dash if there is none."""
    if value is None or math.isnan(value):
        return "–"
    if value and abs(value) < 10**-digits:
        return f"{value:.1e}" if digits else f"{value:.2g}"
    return f"{value:,.{digits}f}"
