"""Rules on records: estimates, because a record is a sample of the tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import ConfigError
from rlobj.base.lazy import arrow_compute
from rlobj.config.presets import Preset
from rlobj.insight.filtering import columns_of, matching, read_filter
from rlobj.insight.replaying.candidates import RECORDED, Candidates
from rlobj.insight.replaying.collecting import Collected
from rlobj.insight.replaying.planned import EFFECTS
from rlobj.insight.replaying.sums import Tokens
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import Expr, Rule

READ = ("step", "inclusion_probability", "spurious", "effect", "gradient_norm", "kept")
"""Columns that are read besides those of the rules."""
_WHOLE = (
    "Full tables have all tokens: leave out --records, or train with --set output.tables_every=10"
)


class Filters:
    """The rules that a record can answer.

    Args:
        candidates: objectives count by the tokens that they drop.
        found: keeps why the record cannot answer the others.
    """

    def __init__(self, candidates: Candidates, found: Collected) -> None:
        self.found = found
        self.rules: dict[str, Expr] = {}
        self.swept: dict[str, dict[float, Expr]] = {}
        for name, each in candidates.objectives.items():
            objective = each.objective if isinstance(each, Preset) else each
            if (rule := _left_out(objective)) is None:
                found.refuse(name, f"it drops no tokens by a rule. {_WHOLE}")
            else:
                self.rules |= self._read(name, {name: rule})
        for name, rule in candidates.rules.items():
            self.rules |= self._read(name, {name: rule})
        for name, rules in candidates.swept.items():
            self.swept[name] = self._read(name, rules)

    def _read(self, name: str, rules: Mapping[Any, Rule]) -> dict[Any, Expr]:
        """The rules as filters; none of them if the record cannot answer one."""
        try:
            return {key: read_filter(rule) for key, rule in rules.items()}
        except ConfigError as error:
            self.found.refuse(name, f"{error}. {_WHOLE}")
            return {}

    @property
    def columns(self) -> list[str]:
        """The columns of the record that are read."""
        rules = [*self.rules.values(), *(r for each in self.swept.values() for r in each.values())]
        return sorted({*READ, *(name for rule in rules for name in columns_of(rule))})


def _left_out(objective: Objective) -> Rule | None:
    """The rule of the tokens that an objective drops; None = it has no such rule."""
    kept = None if objective.keep_rule is None else ~objective.keep_rule
    if objective.drop_rule is None or kept is None:
        return objective.drop_rule if kept is None else kept
    return objective.drop_rule | kept


def collect_records(filters: Filters, batches: Iterable[Any], step: int | None) -> None:
    """Add what the rules select of recorded tokens.

    Args:
        filters: the rules, and what is added to.
        batches: pyarrow tables with the columns of `filters`.
        step: only this step; None = all.

    Raises:
        ConfigError: a table lacks a column.
    """
    pc = arrow_compute()
    for batch in batches:
        for name in filters.columns:
            if name not in batch.column_names:
                raise ConfigError(f"the table has no column '{name}', which the replay reads")
        for at in pc.unique(batch["step"]).to_pylist():
            if step in (None, at):
                _collect(filters, batch.filter(pc.equal(batch["step"], at)), at)


def _collect(filters: Filters, rows: Any, step: int) -> None:
    """Add the recorded tokens of a step."""
    pc, found = arrow_compute(), filters.found
    spurious, inclusion, norms = (
        torch.tensor(rows[name].cast("float64").to_numpy())
        for name in ("spurious", "inclusion_probability", "gradient_norm")
    )
    tokens = Tokens(step, spurious, inclusion)
    norms = norms.nan_to_num(0)  # tokens without a gradient were not scored
    touched = {RECORDED: _mask(pc.is_valid(rows["effect"]))}
    touched |= {name: _mask(matching(rule, rows)) for name, rule in filters.rules.items()}
    for name, chosen in touched.items():
        found.add(name, tokens, tokens.touched(chosen, norms))
    effects = {name: _mask(pc.equal(rows["effect"], name)) for name in EFFECTS}
    counts = {"kept": _mask(rows["kept"]), **effects}
    found.add(RECORDED, tokens, {key: tokens.sum(each) for key, each in counts.items()})
    for name, rules in filters.swept.items():
        for value, rule in rules.items():
            chosen = _mask(matching(rule, rows))
            found.add_value(name, value, tokens.touched(chosen, norms))
    found.add_pairs(tokens, touched, {})


def _mask(column: Any) -> Tensor:
    """True where a boolean column is true, bool [N]."""
    return torch.tensor(arrow_compute().fill_null(column, False).to_numpy(zero_copy_only=False))
