"""What a record holds for sure of the tokens of its steps, and of what it has only a sample.

Without the number of a step's tokens in metrics.jsonl, its untouched tokens are all there if those
that are there were recorded with probability 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow

from rlobj.base.arrow import pc
from rlobj.runs.reading import Record

COLUMNS = ("step", "effect", "spurious", "inclusion_probability")
"""The columns of the record that tell it."""


@dataclass(frozen=True)
class Coverage:
    """How many of the tokens of some steps a record holds, and with which probability.

    Attributes:
        recorded: number of tokens in the record.
        touched: it holds each token that was touched or is spurious.
        everything: it holds each token.
        probability: the smallest one with which it holds a token that was touched or is spurious,
            and one of the others; None = unknown.
        absent: number of tokens that it does not hold; None = unknown.
        outside: number of those of which it is not known how probably they were recorded.
    """

    recorded: int
    touched: bool
    everything: bool
    probability: tuple[float | None, float | None]
    absent: float | None
    outside: float

    @classmethod
    def of(cls, record: Record, rows: Any, tokens: Mapping[int, float]) -> Coverage:
        """That of a run's record.

        Args:
            record: of the run.
            rows: all recorded tokens of some steps, with `COLUMNS`.
            tokens: the number of all tokens of each of these steps, where it is known.
        """
        p = rows["inclusion_probability"].cast("float64")
        sure = pc.or_(pc.is_valid(rows["effect"]), pc.fill_null(rows["spurious"], False))
        nobody = pyarrow.scalar(None, "float64")
        columns = {"step": rows["step"], "p": p, "other": pc.if_else(sure, nobody, p)}
        ends = [("p", "count"), ("p", "min"), ("other", "min")]
        by_step = pyarrow.table(columns).group_by("step").aggregate(ends).to_pylist()
        steps = {row["step"]: (row["p_count"], row["p_min"], row["other_min"]) for row in by_step}
        least = pc.min(p.filter(sure)).as_py()
        sampling = record.sampling
        if sampling is None:
            touched = least is None or least == 1
        else:
            least = 0.5**sampling.halvings
            touched = least == 1 and steps.keys() <= sampling.steps
        everything, absent, outside = touched, 0.0, 0.0
        for step in steps.keys() | tokens.keys():
            count, smallest, other = steps.get(step, (0, 1.0, None))
            left = max(tokens[step] - count, 0.0) if step in tokens else None
            whole = other == 1 if left is None else left == 0
            everything = everything and whole and smallest == 1
            absent += math.nan if left is None else left
            outside += left if left and other in (None, 1) else 0.0
        others = [other for _, _, other in steps.values() if other is not None]
        return cls(
            recorded=len(rows),
            touched=touched,
            everything=everything,
            probability=(least, min(others, default=None)),
            absent=None if math.isnan(absent) else absent,
            outside=outside,
        )

    def by_chance(self, p: Any) -> Any:
        """1 for a token that is recorded as probably as the untouched ones, else 0; arrays [N]."""
        sure, other = self.probability
        alike = sure is not None and other is not None and other >= sure
        below = pc.less(p, 1.0 if sure is None else 0.999 * sure)
        return pc.or_(below, alike).cast("int64")

    def unseen(self, touched: bool) -> float | None:
        """How many tokens of a kind there may be, though none of them that was sampled is there.

        More are missed with a probability of at most 5%: (1 − p)ⁿ ≤ exp(−p·n) < 5% for n = 3/p.

        Args:
            touched: tokens of this kind were touched or are spurious.

        Returns:
            The number; None = unknown.
        """
        if self.absent is None:
            return None
        sure, other = self.probability
        probabilities = [sure] if touched else [other] if self.touched else [sure, other]
        sampled = [p for p in probabilities if p is not None and p < 1]
        if touched and not sampled:
            return self.absent
        rest = 0.0 if touched else self.outside
        return min(self.absent, rest + (3 / min(sampled) if sampled else 0.0))
