"""The tables of a replay as texts, for the screen and for notebooks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlobj.insight.numbers import percent
from rlobj.reporting import visible
from rlobj.reporting.terminal import number

COUNT = "{:,.0f}".format
TOKENS = {
    "touched": ("tokens", COUNT),
    "share": ("share", percent),
    "precision": ("precision", percent),
    "recall": ("recall", percent),
    "carried": ("gradient", percent),
}
"""The tokens that objectives and rules touch: column -> head and format."""
GRADIENT = {
    "effect": ("effect", str),
    "clipped": ("clipped", COUNT),
    "gradient": ("size", number),
    "gradient_up": ("raised", percent),
    "gradient_spurious": ("spurious", percent),
    "value_explained_variance": ("V explains", number),
}
"""The gradients of objectives, in the same way."""
EFFECTS = ("dropped", "masked", "reweighted", "switched", "penalised")


def text_tables(replayed: Any) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """A title, the head and the rows of each table: objectives and rules, gradients, sweeps.

    Args:
        replayed: a `Replay`.
    """
    rows, sweeps = replayed.objectives.to_pylist(), replayed.sweeps.to_pylist()
    for row in rows:
        counts = {effect: row[effect] for effect in EFFECTS if row[effect]}
        row["effect"] = ", ".join(f"{name} {n:,.0f}" for name, n in counts.items()) or "none"
    if len(rows) > 1 or not sweeps:
        yield "", *_texts("touched by", TOKENS, "name", rows)
    if planned := [row for row in rows if row["gradient"] is not None]:
        yield "", *_texts("gradient of", GRADIENT, "name", planned)
    for rule in dict.fromkeys(row["name"] for row in sweeps):
        chosen = [row | {"value": f"{row['value']:g}"} for row in sweeps if row["name"] == rule]
        yield visible(rule, 300), *_texts(replayed.swept, TOKENS, "value", chosen)


def _texts(
    title: str,
    heads: Mapping[str, tuple[str, Callable[[Any], str]]],
    name: str,
    rows: Sequence[Mapping[str, Any]],
) -> tuple[list[str], list[list[str]]]:
    """The head and the rows; columns of which nothing is known are left out.

    Args:
        title: of the names.
        heads: for each column its head and its format.
        name: the column with the names of the rows.
        rows: the values.
    """
    known = {key: head for key, head in heads.items() if any(row[key] is not None for row in rows)}
    head = [title, *(text for text, _ in known.values())]
    cells = [
        ["–" if row[key] is None else text(row[key]) for key, (_, text) in known.items()]
        for row in rows
    ]
    return head, [[visible(row[name], 60), *of] for row, of in zip(rows, cells, strict=True)]
