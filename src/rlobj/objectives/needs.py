"""The TokenBatch columns that the stages of an objective read, each with what reads it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlobj.objectives.rules import Expr, score_columns
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


def read_columns(names: Iterable[str], scores: Iterable[str]) -> list[str]:
    """The TokenBatch columns behind some columns, of which scores give some."""
    derived = score_columns(scores)
    return [c for name in names for c in (derived[name].reads if name in derived else (name,))]


def rule_columns(
    expressions: Iterable[tuple[str, Expr]], scores: Iterable[str] = ()
) -> dict[str, str]:
    """The columns that expressions read, each with what reads it.

    Args:
        expressions: the objective's rules and numbers, each with the field that holds it.
        scores: names of the scores.
    """
    readers = {"advantages": "the surrogate"}
    for field, expression in expressions:
        for column in read_columns(expression.batch_columns(), scores):
            readers.setdefault(column, f"{field} '{expression}'")
    return readers


def present(columns: Mapping[str, str], tables: Sequence[TokenBatch]) -> dict[str, str]:
    """The columns of the loss that all tables hold; `plan` checks that they are finite."""
    return {
        name: who
        for name, who in columns.items()
        if tables
        and name != "entropy"
        and all(name in t.columns or getattr(t, name, None) is not None for t in tables)
    }
