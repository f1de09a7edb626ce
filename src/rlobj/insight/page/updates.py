"""All tokens of an update of a run with full tables, planned again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow
import torch

from rlobj.base.errors import BatchError
from rlobj.base.interleaved import Interleaved
from rlobj.insight.page.rules import part_column
from rlobj.insight.tables import observed_again
from rlobj.objectives.frame import Frame
from rlobj.objectives.needs import rule_columns
from rlobj.objectives.rules import NAMES, Rule
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.statistics import SingleProcess
from rlobj.runs.columns import COLUMNS
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.rows import numbers, numpy, rows_of
from rlobj.runs.tables import UpdateTable
from rlobj.runs.texts import TokenTexts


def whole_rows(update: UpdateTable, texts: TokenTexts, rules: Sequence[Rule] = ()) -> Any:
    """All tokens of decided responses of an update, planned again.

    Args:
        update: the update.
        texts: of tokens.
        rules: the parts of the run's rules.
    """
    observed = observed_again(update)
    table, plan = update.table, observed.plan
    assert plan.clauses is not None
    decided, ids = table.decided.nonzero()[:, 0], table.ids
    assert ids is not None
    place = (update.step, update.update)
    rows = encoded(rows_of(observed, decided, place, texts, context=0))
    in_phase = pyarrow.array(numpy(plan.clauses.in_phase[decided]))
    rows = rows.append_column("in_phase", in_phase)
    rows = rows.drop_columns(["before", "after"])  # the rows around say it
    per_token, per_response = _more_columns(observed)
    chosen = table.responses[decided]
    places = zip(chosen.tolist(), table.positions[decided].tolist(), strict=True)
    if read := _read(update, texts):
        said = pyarrow.array(map(read.get, places), "string")
        rows = rows.append_column("read", said.dictionary_encode())
    prompts = pyarrow.array([texts.joined(prompt) for prompt, _ in update.sequences])
    more = {name: numbers(values[decided]) for name, values in per_token.items()}
    more |= {name: numbers(values[chosen]) for name, values in per_response.items()}
    for name, values in more.items():
        rows = rows.append_column(name, pyarrow.array(values, from_pandas=True))
    for rule, held in _held(update, rules):
        rows = rows.append_column(part_column(rule), pyarrow.array(numpy(held[decided])))
    rows = rows.append_column("prompt", prompts.take(numpy(chosen)).dictionary_encode())
    empty = (table.decided_responses & (table.lengths == 0)).nonzero()[:, 0]
    alone = {
        "step": np.full(len(empty), place[0], np.int32),
        "update": np.full(len(empty), place[1], np.int32),
        "response": numpy(ids[empty]),
        "group": numpy(table.groups[empty]),
        "position": np.full(len(empty), -1, np.int32),
        "reward": numbers(table.reward()[empty]),
        **{name: numbers(values[empty]) for name, values in per_response.items()},
    }
    return pyarrow.concat_tables([rows, pyarrow.table(alone)], promote_options="default")


def _read(update: UpdateTable, texts: TokenTexts) -> dict[tuple[int, int], str]:
    """What the policy read in conversations, by the response and the position that follow."""
    read_before: dict[tuple[int, int], str] = {}
    for i, (_, tokens) in enumerate(update.sequences):
        for place, read in tokens.gaps if isinstance(tokens, Interleaved) else ():
            read_before[i, place] = read_before.get((i, place), "") + texts.joined(read)
    return read_before


def _more_columns(
    observed: ObservedUpdate,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Columns of rules that the record lacks: with one value per token, and per response."""
    table, current, old = observed.table, observed.logprobs, observed.old_logprobs
    per_token = {
        "logprob": current,
        "old_logprob": old,
        "old_entropy": observed.entropy if table.old_entropy is None else table.old_entropy,
    }
    for score in ("ref", "proxy", *observed.objective.scores):
        name = score_column(score)
        logprobs = table.columns.get(name, getattr(table, name, None))
        if logprobs is not None:
            per_token[f"{score}_gap"] = logprobs - current
    if table.turn_reward is not None:
        per_token["turn_reward"] = table.turn_reward
    taken = {*COLUMNS, *NAMES, "prompt", "read"}
    run_columns = {name: values for name, values in table.columns.items() if name not in taken}
    by_response = {name: run_columns.pop(name) for name in table.response_columns - taken}
    rewards = {f"reward:{name}": table.reward(name) for name in table.reward_names or ()}
    return {**run_columns, **per_token}, {"length": table.lengths, **rewards, **by_response}


def _held(update: UpdateTable, rules: Iterable[Rule]) -> Iterator[tuple[Rule, torch.Tensor]]:
    """The tokens on which each part of the run's rules holds, bool [N].

    Parts are left out that read what the update lacks.
    """
    for rule in rules:
        reads = rule_columns([("the page", rule)], update.objective.scores)
        with contextlib.suppress(BatchError):
            frame = Frame([update.table], reads, SingleProcess(), update.state)
            held = frame.rule(rule)
            frame.check()
            yield rule, held


def encoded(rows: Any) -> Any:
    """The rows with dictionaries for texts."""
    for i, column in enumerate(rows.schema):
        if column.type == pyarrow.string():
            rows = rows.set_column(i, column.name, rows[column.name].dictionary_encode())
    return rows
