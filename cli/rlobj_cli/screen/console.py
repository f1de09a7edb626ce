"""What the commands share on screen: the console, quiet libraries, YAML and numbers."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rlobj.objectives.explanation import Explanation

__all__ = [
    "FIRST_USE",
    "calm_libraries",
    "facts_grid",
    "loading",
    "number",
    "plain_value",
    "preparation_line",
    "preparing_policy",
    "show_explanation",
    "show_yaml",
    "with_error",
    "working",
]

FIRST_USE = "first use: preparing the embedded policy"


def calm_libraries(console: Console) -> None:
    """Keep the libraries' bars and notices off the screen; rlobj's own warnings stay."""
    import torch

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed prints that it guessed so
    from rich.logging import RichHandler
    from transformers.utils import logging as notices

    notices.disable_progress_bar()
    notices.set_verbosity_error()
    warnings.filterwarnings("ignore", module=r"(torch|transformers|accelerate|datasets)\b.*")
    handler = RichHandler(
        console=console, level=logging.WARNING, show_time=False, show_path=False, markup=False
    )
    logger = logging.getLogger("rlobj")
    logger.handlers, logger.propagate = [handler], False


def loading(console: Console) -> AbstractContextManager[Any]:
    """A sign of life while torch is imported; nothing where there is no terminal."""
    if not console.is_interactive:
        return contextlib.nullcontext()
    return console.status("loading", spinner_style="cyan")


@contextlib.contextmanager
def working(console: Console, doing: str, news: Callable[[], str] = str) -> Iterator[None]:
    """What goes on and for how long, while it does; nothing where there is no terminal.

    Args:
        console: where to; leaves nothing behind there.
        doing: what goes on.
        news: asked four times a second for a line to show below; empty for none.
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
def preparing_policy(console: Console) -> Iterator[Callable[[int, int, float], None]]:
    """Show the supervised steps that make the embedded policy; nothing if they were made before.

    Yields:
        What is called with (steps done, steps in all, loss) after each step.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(FIRST_USE), BarColumn(), MofNCompleteColumn())
    shown = console.is_interactive
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", visible=False)

        def progress(done: int, total: int, loss: float) -> None:
            bar.update(task, completed=done, total=total, visible=True)
            if not shown and done in (1, total):
                console.print(Text(preparation_line(done, total, loss)), soft_wrap=True)

        yield progress


def preparation_line(done: int, total: int, loss: float) -> str:
    """A line of a log about the first or the last supervised step."""
    if done < total:
        return f"{FIRST_USE} ({total} supervised steps, kept for later runs)"
    return f"the embedded policy is ready, loss {loss:.3f}"


def facts_grid(facts: Mapping[str, str]) -> Table:
    """Names and texts in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", min_width=10)
    grid.add_column(overflow="fold")
    for name, text in facts.items():
        grid.add_row(f"  {name}", Text(text))
    return grid


def show_yaml(console: Console, text: str) -> None:
    """YAML in colour on a terminal; elsewhere the bare text, which YAML reads back."""
    if not console.is_terminal:
        console.print(Text(text.rstrip("\n")), soft_wrap=True)
        return
    from rich.syntax import Syntax

    console.print(
        Syntax(text, "yaml", theme="ansi_dark", background_color="default", word_wrap=True)
    )


def show_explanation(console: Console, explanation: Explanation) -> None:
    """Formula, rules, columns read, and settings that cannot act."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold cyan")
    grid.add_column()
    for line in explanation.formula:
        symbol, gap, text = line.partition("  ")
        if gap and symbol:
            grid.add_row(Text(symbol), Text(text))
        else:
            console.print(Text(line, style="bold"), soft_wrap=True)
    console.print(grid)
    for place, rule, meaning in explanation.rules:
        console.print()
        console.print(Text.assemble((place, "bold cyan"), ": ", rule))
        for part in meaning.split("; "):
            console.print(_indented(part))
    console.print()
    for stage, columns in explanation.needs:
        console.print(Text(f"{stage} reads {columns}", style="dim"))
    for text in explanation.inert:
        console.print(Text.assemble(("cannot act: ", "bold yellow"), text))


def _indented(text: str) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_row("   ", Text(text))
    return grid


def plain_value(value: Any) -> str:
    """A setting on one line, as YAML writes it."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def number(value: float | None, digits: int = 3) -> str:
    """A number for people; a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    if value and abs(value) < 10**-digits:
        return f"{value:.1e}"
    return f"{value:,.{digits}f}"


def with_error(value: float | None, errors: Sequence[float | None]) -> str:
    """A value ± the first standard error that is known."""
    known = [error for error in errors if error is not None and not math.isnan(error)]
    return f"{number(value)} ± {number(known[0])}" if known else number(value)
