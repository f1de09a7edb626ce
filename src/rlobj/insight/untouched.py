"""Why a rule touched no token: how many recorded tokens each of its parts held for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.base.lazy import arrow_compute
from rlobj.insight.filtering import columns_of, matching, read_filter
from rlobj.insight.inspecting import record_batches
from rlobj.objectives.rules import Column, Constant, Rule
from rlobj.objectives.rules.nodes import Compare, Logic


@dataclass
class Part:
    """One of the conditions that a rule joins with &.

    Attributes:
        rule: the condition.
        readable: the record can answer it; a cut such as `entropy.bottom(0.8)` needs all tokens.
        tokens: estimated tokens on which it held.
        nearest: the value closest to its threshold, on tokens on which the other readable parts
            held; NaN if the part is no comparison of a column with a number.
    """

    rule: Rule
    readable: bool
    tokens: float = 0.0
    nearest: float = math.nan


def parts_of(rule: Rule) -> list[Part]:
    """The conditions that a rule joins with &."""
    return [Part(each, _readable(each)) for each in _conjuncts(rule)]


def reach(run: Path | str, rule: Rule) -> list[Part]:
    """How far a rule was from touching a token, by its parts, over the whole record.

    Raises:
        ConfigError: no run or no records there.
    """
    pc = arrow_compute()
    parts = parts_of(rule)
    readable = [part for part in parts if part.readable]
    columns = {name for part in readable for name in columns_of(part.rule)}
    for rows in record_batches(Path(run), [*columns, "inclusion_probability"]):
        weights = pc.divide(1.0, rows["inclusion_probability"].cast("float64"))
        held = [matching(part.rule, rows) for part in readable]
        for i, part in enumerate(readable):
            part.tokens += pc.sum(weights.filter(held[i])).as_py() or 0.0
            others = reduce(pc.and_, [*held[:i], *held[i + 1 :]], pc.is_valid(weights))
            part.nearest = _nearest(part, rows.filter(others))
    return parts


def _nearest(part: Part, rows: Any) -> float:
    """The value of these rows that is closest to the part's threshold, or that of rows before."""
    pc = arrow_compute()
    match part.rule:
        case Compare(operator=operator, left=Column(name=name), right=Constant()):
            below = operator.startswith("<")
            found = (
                (pc.min if below else pc.max)(rows[name]).as_py()
                if name in rows.column_names
                else None
            )
            known = [x for x in (found, part.nearest) if x is not None and not math.isnan(x)]
            return (min if below else max)(known, default=math.nan)
    return math.nan


def _conjuncts(rule: Rule) -> Iterator[Rule]:
    if isinstance(rule, Logic) and rule.operator == "&":
        yield from _conjuncts(rule.left)
        yield from _conjuncts(rule.right)
    else:
        yield rule


def _readable(rule: Rule) -> bool:
    try:
        read_filter(rule)
    except ConfigError:
        return False
    return True
