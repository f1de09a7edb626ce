"""Benchmarks on screen: what is measured now, and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column as Place
from rich.table import Table as Shown
from rich.text import Text

from rlobj.benchmarking import Column, Table
from rlobj.benchmarking.tables import SIGNS, Cell, Finding, blocks, is_ours, printed

__all__ = ["Watch", "show_table"]


class Watch:
    """A bar with what is measured now; without a terminal, a line now and then.

    A context manager; called as the `progress` of a benchmark.
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console, self._name, self._tenth = console, name, -1
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            TextColumn(
                "[dim]{task.fields[what]}",
                table_column=Place(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=console,
            transient=True,
            expand=True,
        )
        self._task = self._bar.add_task(name, total=None, what="starting")

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_interactive:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show what is measured next, and how far the benchmark is."""
        self._bar.update(self._task, completed=done, total=total, what=what)
        tenth = 10 * done // max(total, 1)
        if not self._console.is_interactive and tenth > self._tenth and done < total:
            self._tenth = tenth
            line = f"{self._name} {done}/{total}: {what}"
            self._console.print(Text(line, style="dim"), soft_wrap=True)


def show_table(console: Console, table: Table) -> None:
    """The table in blocks, and under it what it says."""
    console.print(Text(table.title, style="bold"))
    _show_text(console, Text(table.reading, style="dim"))
    found = blocks(table)
    if len(found) == len(table.rows):  # blocks of one row: a plain table
        console.print()
        _show_grids(console, table, table.columns, table.rows)
    else:
        _show_blocks(console, table, found)
    console.print()
    for finding in table.findings:
        _show_finding(console, finding)
    if table.settings:
        told = ", ".join(f"{name} {value}" for name, value in table.settings)
        _show_text(console, Text(f"measured with: {told}", style="dim"))


def _show_blocks(
    console: Console, table: Table, found: Sequence[tuple[Cell, list[dict[str, Cell]]]]
) -> None:
    """Each block under its head, the columns at the same places in all of them."""
    first, *columns = table.columns
    for head, rows in found:
        text = printed(head, first.kind)
        console.print()
        console.print(
            Text(text if first.kind == "text" else f"{first.title} {text}", style="bold cyan")
        )
        measured = [row for row in rows if not row.get("skipped")]
        if measured:
            known = [c for c in columns if any(row.get(c.name) is not None for row in measured)]
            _show_grids(console, table, known, measured)
        for row in rows:
            if row.get("skipped"):
                words = [str(row.get(c.name) or "") for c in columns if c.kind == "text"]
                name = " ".join(word for word in words if word)
                line = f"{name:<{_width(columns[0], table.rows)}}  {row['skipped']}"
                console.print(Text(line, style="dim"))


def _show_grids(
    console: Console, table: Table, columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]]
) -> None:
    """The rows; columns that find no room beside the others come below, under the same names."""
    names = [c for place, c in enumerate(columns) if place == 0 or c.kind == "text"]
    rest = [c for c in columns if c not in names]
    while True:
        part = list(names)
        while rest and (part == names or _room(table, [*part, rest[0]]) <= console.width):
            part.append(rest.pop(0))
        console.print(_grid(table, part, rows))
        if not rest:
            return


def _room(table: Table, columns: Sequence[Column]) -> int:
    """Characters that the columns take."""
    return sum(_width(column, table.rows) + 2 for column in columns) - 2


def _grid(table: Table, columns: Sequence[Column], rows: Sequence[Mapping[str, Cell]]) -> Shown:
    shown = Shown(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        shown.add_column(
            column.title,
            justify="left" if column.kind == "text" else "right",
            vertical="bottom",
            width=_width(column, table.rows),  # the same in every block
            overflow="fold",
        )
    for row in rows:
        cells: list[Any] = [Text(printed(row.get(c.name), c.kind)) for c in columns]
        shown.add_row(*cells, style="bold green" if is_ours(table, row) else None)
    return shown


def _width(column: Column, rows: Sequence[Mapping[str, Cell]]) -> int:
    """Characters of the longest cell, or of the longest word of the title."""
    cells = [len(printed(row.get(column.name), column.kind)) for row in rows]
    return min(28, max([*map(len, column.title.split(" ")), *cells, 3]))


def _show_finding(console: Console, finding: Finding) -> None:
    """A sentence behind its sign; what wraps stands below the sentence."""
    style = {True: "green", False: "yellow", None: "dim"}[finding.reached]
    sign = Text.assemble((SIGNS[finding.reached], style), " ")
    _show_text(console, Text(finding.text), sign)


def _show_text(console: Console, text: Text, before: Text | None = None) -> None:
    """Text that wraps without leaving blanks at the ends of its lines."""
    before = before or Text()
    for place, line in enumerate(text.wrap(console, console.width - len(before))):
        line.rstrip()
        console.print((before if place == 0 else Text(" " * len(before))) + line)
