"""What a benchmark comes to: a table of numbers that a screen, a file and a figure can show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

__all__ = [
    "SIGNS",
    "Cell",
    "Column",
    "Finding",
    "Progress",
    "Table",
    "blocks",
    "from_json",
    "is_ours",
    "markdown",
    "printed",
    "silent",
    "to_json",
]

Cell = str | int | float | None
"""None where nothing was measured."""

Kind = Literal["text", "count", "seconds", "mib", "ratio", "share", "number"]
"""How a number is printed: "ratio" as 1.23x, "share" as 97.3%, "mib" without decimals."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: the key of its cells.
        title: what is printed above it.
        kind: of its cells.
    """

    name: str
    title: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Finding:
    """What the numbers say.

    Attributes:
        text: a sentence, with the bound that was aimed at where there is one.
        reached: whether the bound is, everywhere; None where the sentence has none.
    """

    text: str
    reached: bool | None = None


@dataclass(frozen=True)
class Table:
    """Measurements, and what they say.

    Attributes:
        name: of the benchmark; one word.
        title: one line.
        reading: how to read the table, in a sentence or two: what the numbers are, what is small.
        columns: from left to right; a change in the first one starts a new block.
        rows: cells by column name; a row may have more than is printed, for the JSON. A row with
            `skipped` has this text, the reason, in place of its numbers.
        findings: what the numbers say.
        settings: what was measured with.
    """

    name: str
    title: str
    reading: str
    columns: tuple[Column, ...]
    rows: tuple[dict[str, Cell], ...]
    findings: tuple[Finding, ...] = ()
    settings: tuple[tuple[str, Cell], ...] = ()


Progress = Callable[[str, int, int], None]
"""Told what is measured next, how many measurements are done, and of how many."""


SIGNS: dict[bool | None, str] = {True: "✓", False: "✗", None: "·"}
"""What stands before a finding."""


def silent(what: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def printed(cell: Cell, kind: Kind) -> str:
    """A cell as people read it; a dash where nothing was measured.

    Example:
        >>> printed(1.234, "ratio"), printed(0.973, "share"), printed(None, "mib")
        ('1.23x', '97.3%', '–')
    """
    if cell is None or cell != cell:
        return "–"
    if isinstance(cell, str):
        return cell
    if kind in ("count", "mib"):
        return f"{cell:,.0f}"
    if kind == "share":
        return f"{cell:.1%}"
    return _rounded(cell, 2) + "x" if kind == "ratio" else _rounded(cell, 3)


def _rounded(value: float, digits: int) -> str:
    """Three digits or four, and two at least of a small number."""
    size = abs(value)
    if size and size < 10 ** (1 - digits):
        return f"{value:.2g}"
    shown = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else digits
    return f"{value:,.{shown}f}"


def is_ours(table: Table, row: Mapping[str, Cell]) -> bool:
    """Whether a row is about rlobj itself, in a table that compares it with others."""
    texts = [column.name for column in table.columns if column.kind == "text"]
    named = [str(row.get(name, "")).startswith("rlobj") for name in texts]
    return any(named)


def blocks(table: Table) -> list[tuple[Cell, list[dict[str, Cell]]]]:
    """The rows, parted where the first column changes."""
    first = table.columns[0].name
    parts = groupby(table.rows, key=lambda row: row.get(first))
    return [(head, list(rows)) for head, rows in parts]


def markdown(table: Table) -> str:
    """The table with its findings, to paste."""
    first, *others = table.columns
    alike = all(column.kind == "text" for column in table.columns)
    lines = [
        f"## {table.title}",
        "",
        table.reading,
        "",
        _line(column.title for column in table.columns),
        _line("---" if column.kind == "text" or alike else "---:" for column in table.columns),
    ]
    for head, rows in blocks(table):
        for place, row in enumerate(rows):
            cells = [printed(head, first.kind) if place == 0 else ""]
            cells += [printed(row.get(column.name), column.kind) for column in others]
            if reason := row.get("skipped"):
                cells = [cell for cell in cells if cell != "–"]
                cells = [*cells, str(reason)][: len(table.columns)]
                cells += [""] * (len(table.columns) - len(cells))
            if is_ours(table, row):
                cells = [f"**{cell}**" if cell else "" for cell in cells]
            lines.append(_line(cells))
    lines += ["", *(_item(finding) for finding in table.findings)]
    if table.settings:
        told = ", ".join(f"{name} {value}" for name, value in table.settings)
        lines += ["", f"Measured with: {told}."]
    return "\n".join(lines).rstrip() + "\n"


def _item(finding: Finding) -> str:
    sign = "" if finding.reached is None else f"{SIGNS[finding.reached]} "
    return f"- {sign}{finding.text}"


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def to_json(table: Table) -> dict[str, Any]:
    """The table in JSON's types."""
    return asdict(table)


def from_json(found: Mapping[str, Any]) -> Table:
    """The table that `to_json` wrote."""
    return Table(
        name=found["name"],
        title=found["title"],
        reading=found["reading"],
        columns=tuple(Column(**column) for column in found["columns"]),
        rows=tuple(found["rows"]),
        findings=tuple(map(_finding, found["findings"])),
        settings=tuple((name, value) for name, value in found["settings"]),
    )


def _finding(finding: str | Mapping[str, Any]) -> Finding:
    """A finding from JSON; in older files it is a sentence alone."""
    return Finding(finding) if isinstance(finding, str) else Finding(**finding)
