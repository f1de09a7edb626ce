"""Rules on recorded tokens: `prob < 0.001` on the columns of a record, row by row.

A rule about a population, such as `entropy.bottom(0.8)`, is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow
import torch

from rlobj.base.arrow import pc
from rlobj.base.errors import ConfigError, nearest
from rlobj.objectives.frame import Frame
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import COLUMNS, Expr, Scope, nodes, parse
from rlobj.objectives.statistics import SingleProcess
from rlobj.objectives.tokens import TokenBatch
from rlobj.objectives.values import Values
from rlobj.runs.columns import COLUMNS as RECORDED

_RECORDED = tuple(name for name, column in RECORDED.items() if column.type != "string")
OWN_COLUMNS = tuple(name for name in _RECORDED if name not in COLUMNS)
"""Recorded columns that rules of an objective do not have; true is 1 and false is 0."""


def _log(prob: torch.Tensor) -> torch.Tensor:
    """log π, rounded once: the same number at each place of a table."""
    return prob.double().log().to(prob.dtype)


_DERIVED: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "logprob": ("prob", _log),
    "surprisal": ("prob", lambda prob: -_log(prob)),
    "old_logprob": ("old_prob", _log),
    "old_surprisal": ("old_prob", lambda prob: -_log(prob)),
}
"""Columns of rules that are computed from a recorded one."""

_READABLE = (*_RECORDED, *_DERIVED)
TOKEN_BY_TOKEN = nodes.Arithmetic | nodes.Column | nodes.Compare | nodes.Constant
TOKEN_BY_TOKEN |= nodes.Function | nodes.Logic | nodes.Negative | nodes.Not | nodes.When
"""Nodes whose value at a token depends on this token alone."""
_WIDE = ("rollout", "response", "group")  # ids that float32 would round


def read_filter(where: str | Expr, more: Sequence[str] = ()) -> Expr:
    """The rule of `where`, which must be about single recorded tokens.

    Args:
        where: text, or a rule.
        more: columns that the rows have besides those of the record.

    Raises:
        ConfigError: no rule, a rule about a population, or a column that the record lacks.
    """
    scope, readable = Scope(dict.fromkeys((*OWN_COLUMNS, *more), "token")), (*_READABLE, *more)
    rule = parse(where, scope) if isinstance(where, str) else where
    if not rule.is_rule:
        raise ConfigError(f"'{rule}' is a number. Expected a rule, such as {rule} > 0")
    for node in rule.walk():
        absent = isinstance(node, nodes.Column) and node.name not in readable
        if (absent and str(node) in COLUMNS) or isinstance(node, nodes.NamedReward):
            why = f"the record has no column '{node}'"
        elif absent or isinstance(node, nodes.Controlled):
            raise ConfigError(f"the record has no column '{node}'.{nearest(str(node), readable)}")
        elif not isinstance(node, TOKEN_BY_TOKEN):
            why = f"'{node}' depends on other tokens, and each token is judged by itself here"
        else:
            continue
        raise ConfigError(f"{why}. To count on whole updates: rlobj replay RUN --rule RULE")
    return rule


def deciding(objective: Objective) -> dict[Expr, str]:
    """The rules and numbers that decide about tokens, each with the fields that hold it."""
    fields = [
        ("drop", objective.drop_rule),
        ("keep", objective.keep_rule),
        ("reweight", objective.weight),
        *(("switch", rule) for rule in objective.surrogate.rules()),
        *((penalty.kind, penalty.where) for penalty in objective.penalties),
    ]
    deciders: dict[Expr, str] = {}
    for field, rule in fields:
        if rule is not None:
            deciders[rule] = f"{deciders[rule]}, {field}" if rule in deciders else field
    return deciders


def columns_of(rule: Expr | None) -> list[str]:
    """The recorded columns that a filter reads."""
    expressions = () if rule is None else rule.walk()
    names = [node.name for node in expressions if isinstance(node, nodes.Column)]
    return sorted({_DERIVED[name][0] if name in _DERIVED else name for name in names})


def matching(rule: Expr, rows: Any) -> Any:
    """The rows on which a filter is true, as a pyarrow boolean array.

    A comparison with a null, such as a token that was not scored, is undefined and selects nothing.

    Args:
        rule: from `read_filter`.
        rows: a pyarrow table with the columns of `columns_of`.
    """
    return pyarrow.array(_Rows(rule, rows).rule(rule).numpy())  # pyright: ignore[reportArgumentType]


def undecided(rule: Expr, rows: Any) -> Any:
    """The rows on which a filter has no value, as a pyarrow boolean array."""
    opposite: Any = ~rule  # pyright: ignore[reportOperatorIssue]
    return pc.invert(pc.or_(matching(rule, rows), matching(opposite, rows)))


class _Rows(Frame):
    """Recorded rows, each a response by itself."""

    def __init__(self, rule: Expr, rows: Any) -> None:
        wide = not {*columns_of(rule)}.isdisjoint(_WIDE)
        ones = torch.ones(len(rows), dtype=torch.int64)
        logprobs = -ones.to(torch.float64 if wide else torch.float32)
        table = TokenBatch(lengths=ones, groups=ones, logprobs=logprobs)
        super().__init__([table], {}, SingleProcess())
        self.rows = rows

    def read(self, node: Any) -> Values:
        name, change = _DERIVED.get(node.name, (node.name, None))
        kind = pyarrow.float64() if self.dtype == torch.float64 else pyarrow.float32()
        column = self.rows[name].cast(kind)
        data = torch.tensor(column.to_numpy(), dtype=self.dtype)  # null is NaN
        unknown = data.isnan().to(torch.uint8)
        values = data if change is None else change(data)
        return self._finite(node, Values(values, unknown))
