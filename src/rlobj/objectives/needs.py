"""The TokenBatch columns that an objective reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlobj.objectives.mismatch import Mismatch
from rlobj.objectives.penalties import Penalty
from rlobj.objectives.rules import Expr
from rlobj.objectives.settings import expressions
from rlobj.objectives.surrogates import Surrogate
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


def columns_by_stage(objective: Any) -> dict[str, dict[str, str]]:
    """Stage of an Objective -> TokenBatch column -> what reads it, in one order on all ranks.

    `plan` reads rewards besides these columns, and `loss` reads logprobs.
    """
    return {
        "observe": {
            column: f"the controller {name}"
            for name, controller in objective.controllers.items()
            for column in controller.needs()
        },
        "plan": rule_columns(expressions_of(objective), objective.mismatch),
        "loss": {
            column: type(term).__name__
            for term in terms_of_loss(objective).values()
            for column in term.needs()
        },
    }


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


def expressions_of(objective: Any) -> list[tuple[str, Expr]]:
    """Every rule and number of an Objective, with the field that holds it."""
    owners = (*terms_of_loss(objective).items(), ("mismatch", objective.mismatch))
    fields: list[tuple[str, Expr | None]] = [
        ("drop", objective.drop_rule),
        ("keep", objective.keep_rule),
        ("reweight", objective.weight),
        ("shape", objective.shape),
        *(("split", rule) for rule in objective.split_rules),
        ("phase", objective.phase),
        *(("surrogate", rule) for rule in objective.surrogate.rules()),
        *((penalty.kind, penalty.where) for penalty in objective.penalties),
        *((penalty.kind, penalty.coefficient) for penalty in objective.penalties),
        *(
            (f"{who}.{path}", expression)
            for who, primitive in owners
            for path, expression, _ in (() if primitive is None else expressions(primitive))
        ),
    ]
    return [(who, expression) for who, expression in fields if expression is not None]


def terms_of_loss(objective: Any) -> dict[str, Surrogate | Penalty]:
    """The surrogate and the penalties of an Objective, by their place in the configuration."""
    penalties = {f"penalties.{i}": penalty for i, penalty in enumerate(objective.penalties)}
    return {"surrogate": objective.surrogate, **penalties}
