"""Objectives and rules on full tables, mini-batch by mini-batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow
import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.config.presets import Preset
from rlobj.insight.replaying.candidates import RECORDED, Candidates, unknown_names
from rlobj.insight.replaying.collecting import Collected
from rlobj.insight.replaying.planned import (
    EFFECTS,
    UNSCORED,
    MiniBatch,
    Phase,
    Planned,
    Replayed,
    plan_again,
    reason,
    recorded_phases,
    rollouts,
    select,
)
from rlobj.insight.replaying.sums import Tokens
from rlobj.objectives.frame import Frame
from rlobj.objectives.needs import rule_columns
from rlobj.objectives.objective import Objective
from rlobj.objectives.penalties import EntropyBonus
from rlobj.objectives.rules import Rule
from rlobj.records.rows import numpy
from rlobj.records.tables import UpdateTable


class Exact:
    """The replay of full tables.

    Args:
        candidates: what is replayed besides the recorded objective.
        found: is added to.
        keep: keep what is done to each token.
    """

    def __init__(self, candidates: Candidates, found: Collected, keep: bool) -> None:
        self.candidates, self.found, self.keep = candidates, found, keep
        self.replayed: dict[str, Replayed] | None = None

    def steps(self, updates: Iterable[UpdateTable]) -> Iterator[int]:
        """Replay the updates; yields each step when it is done."""
        for step, batches in rollouts(updates):
            if self.replayed is None:
                self.replayed = self._begin(batches[0][0])
            phases = self._phases(batches)
            for n, batch in enumerate(batches):
                self._replay(step, batch, {name: each[n] for name, each in phases.items()})
            yield step

    def _begin(self, first: UpdateTable) -> dict[str, Replayed]:
        """The objectives at the beginning, and notes about them."""
        longest = first.facts.get("max_tokens")
        found = {}
        for name, each in self.candidates.objectives.items():
            if isinstance(each, Preset):
                each = each.objective if longest is None else each.resolved(longest)
            found[name] = Replayed(each)
            self._note(name, each, first.objective)
        self._note(RECORDED, first.objective, first.objective)
        return found

    def _note(self, name: str, objective: Objective, recorded: Objective) -> None:
        if any(isinstance(penalty, EntropyBonus) for penalty in objective.penalties):
            text = "its gradient is that through the log-probs, without its entropy bonus"
            self.found.notes[f"{name}: {text}"] = None
        if objective.controllers and objective.controllers != recorded.controllers:
            text = "its controllers begin at their start values and see the recorded steps only"
            self.found.notes[f"{name}: {text}"] = None

    def _phases(self, batches: Sequence[MiniBatch]) -> dict[str, list[list[Phase]]]:
        """The phases of each objective on each mini-batch of a rollout."""
        found = {}
        for name, replayed in (self.replayed or {}).items():
            if name not in self.found.refused:
                try:
                    found[name] = replayed.phases(batches)
                except BatchError as error:
                    self._refuse(name, error, replayed.objective.needs.ever, batches[0])
        return found

    def _refuse(self, name: str, error: BatchError, reads: Iterable[str], at: MiniBatch) -> None:
        self.found.refuse(name, reason(error, reads, at[0].table))

    def _replay(self, step: int, batch: MiniBatch, phases: Mapping[str, Sequence[Phase]]) -> None:
        """Replay everything on a mini-batch."""
        first, found = batch[0], self.found
        rows = first.table.decided
        recorded = plan_again(recorded_phases(batch), batch)
        found.equal += recorded.equal
        planned = {RECORDED: recorded.only(rows)}
        for name, each in phases.items():
            if name not in found.refused:
                try:
                    planned[name] = plan_again(each, batch).only(rows)
                except BatchError as error:
                    self._refuse(name, error, each[0][0].needs.ever, batch)
        spurious = first.table.columns.get("spurious")
        if spurious is None:
            spurious = torch.full_like(first.table.logprobs, torch.nan)
        tokens = Tokens(step, spurious[rows])
        for name, each in planned.items():
            found.add_planned(name, tokens, each)
            if bool(each.gradient.isnan().any()):
                found.notes[f"{name}: its gradient is unknown, because {UNSCORED}"] = None
        free = planned[RECORDED].free
        frames: dict[str, Frame] = {}
        touched = {name: each.touched for name, each in planned.items()}
        for name, rule in self.candidates.rules.items():
            for chosen in self._selected(name, [rule], batch, frames):
                touched[name] = chosen
                found.add(name, tokens, tokens.touched(chosen, free))
        for name, rules in self.candidates.swept.items():
            selected = self._selected(name, rules.values(), batch, frames)
            for value, chosen in zip(rules, selected, strict=False):
                found.add_value(name, value, tokens.touched(chosen, free))
        found.add_pairs(tokens, touched, planned)
        if self.keep:
            found.rows.append(_rows(first, rows, touched, planned))

    def _selected(
        self, name: str, rules: Iterable[Rule], batch: MiniBatch, frames: dict[str, Frame]
    ) -> Iterator[Tensor]:
        """The tokens of decided responses that each rule selects; ends where one cannot be read."""
        first = batch[0]
        for rule in () if name in self.found.refused else rules:
            if problem := unknown_names(rule, first.state):
                return self.found.refuse(name, problem)
            try:
                yield select(rule, first.table, first.state, frames)[first.table.decided]
            except BatchError as error:
                return self._refuse(name, error, rule_columns([("rule", rule)], None), batch)


def _rows(
    first: UpdateTable, rows: Tensor, touched: Mapping[str, Tensor], planned: Mapping[str, Planned]
) -> Any:
    """One row per token of a mini-batch, as a pyarrow table."""
    table = first.table
    ids = table.responses if table.ids is None else table.spread(table.ids)
    columns: dict[str, Any] = {
        "step": pyarrow.array([first.step] * int(rows.sum()), "int32"),
        "update": pyarrow.array([first.update] * int(rows.sum()), "int32"),
        "response": numpy(ids[rows]),
        "position": numpy(table.positions[rows]),
    }
    for name, chosen in touched.items():
        if name not in planned:
            columns[f"{name}: selected"] = numpy(chosen)
            continue
        each = planned[name]
        effect = torch.full_like(chosen, -1, dtype=torch.int8)
        for code, mask in enumerate(each.effects.values()):
            effect[mask] = code
        codes = pyarrow.array(numpy(effect), mask=numpy(effect < 0))
        columns[f"{name}: weight"] = numpy(each.weights)
        columns[f"{name}: gradient"] = numpy(each.gradient)
        columns[f"{name}: effect"] = pyarrow.DictionaryArray.from_arrays(codes, list(EFFECTS))
    return pyarrow.table(columns)
