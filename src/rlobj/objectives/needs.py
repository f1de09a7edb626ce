"""The TokenBatch columns that an objective reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlobj.objectives.mismatch import Mismatch
from rlobj.objectives.rules import Expr
from rlobj.objectives.tokens import TokenBatch


@dataclass(frozen=True)
class Needs:
    """The TokenBatch columns that each stage of an objective reads.

    `rewards` are those that rules read by name, each with the field that reads it.
    """

    observe: frozenset[str]
    plan: frozenset[str]
    loss: frozenset[str]
    rewards: Mapping[str, str]

    @property
    def ever(self) -> frozenset[str]:
        """The columns that any stage reads."""
        return self.observe | self.plan | self.loss


def rule_columns(
    expressions: Iterable[tuple[str, Expr]], mismatch: Mismatch | None
) -> dict[str, str]:
    """The columns that expressions and a correction read, each with what reads it.

    Args:
        expressions: the objective's rules and numbers, each with the field that holds it.
        mismatch: the mismatch correction, or None.
    """
    found = {"advantages": "the surrogate"}
    for field, expression in expressions:
        for column in expression.batch_columns():
            found.setdefault(column, f"{field} '{expression}'")
    if mismatch is not None:
        for column in ("old_logprobs", "sampler_logprobs"):
            found.setdefault(column, f"the mismatch correction {mismatch}")
    return found


def present(columns: Mapping[str, str], tables: Sequence[TokenBatch]) -> dict[str, str]:
    """The columns of the loss that all tables hold; `plan` checks that they are finite."""
    return {
        name: who
        for name, who in columns.items()
        if tables and name != "entropy" and all(getattr(t, name) is not None for t in tables)
    }
