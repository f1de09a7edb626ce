"""The rows of a page: all tokens of steps with full tables, and the recorded tokens of the others.

A row is a token of an update, in the order of step, update, group, rollout, response and position,
with the columns of the record. Tokens that belong to another phase of the objective are shown, too,
and do not count: their `in_phase` is false. It is null for recorded tokens.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import torch

from rlobj.base.arrow import DAMAGED, pc, read_parquet
from rlobj.base.errors import BatchError, ConfigError, counted
from rlobj.base.interleaved import Interleaved
from rlobj.base.paths import step_of
from rlobj.insight.filtering import TOKEN_BY_TOKEN, columns_of, matching, undecided
from rlobj.insight.numbers import listed
from rlobj.insight.opening import observed_again, open_run
from rlobj.insight.page.rules import objective_of, part_column, parts_of, rules_of
from rlobj.objectives.frame import Frame
from rlobj.objectives.needs import rule_columns
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import NAMES, Rule
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.rules.nodes import UnreadRule
from rlobj.objectives.statistics import SingleProcess
from rlobj.runs.columns import COLUMNS
from rlobj.runs.layout import step_files, table_files
from rlobj.runs.metrics import Progress
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.reading import Record, RecordedUpdate
from rlobj.runs.rows import numbers, numpy, rows_of
from rlobj.runs.tables import UpdateTable
from rlobj.runs.texts import TokenTexts

BUDGET = 1_000_000
"""Rows of a page."""
RECORDED = 100_000
"""Recorded rows of a page, each with the text before and after it."""
ORDER = ("step", "update", "group", "rollout", "response", "position")


@dataclass(frozen=True)
class PageRows:
    """The tokens of a page.

    Attributes:
        rows: a pyarrow table with the columns of the record, and for whole updates also
            old_entropy, ref_gap, proxy_gap, prompt, turn_reward, NAME_return of a value, read (what
            the policy read before the token), `reward:NAME`, and an objective's own columns; its
            `value` is NAME_value. `holds:PART` says whether a part of the run's rules holds; null =
            not known.
        updates: step and update of the whole updates.
        notes: what is left out or shown in another way than the reader may expect, in sentences.
        objective: that of the run; None if it cannot be read.
        touched: each token that was touched or is spurious is there.
        counts: exact counts of all updates that the record has.
    """

    rows: Any
    updates: list[dict[str, Any]]
    notes: list[str]
    objective: Objective | None = None
    touched: bool = True
    counts: Sequence[RecordedUpdate] = ()


def read_rows(
    run: Path | str,
    budget: int = BUDGET,
    *,
    progress: Progress = lambda done, total: None,
) -> PageRows:
    """Read the tokens that a page of a run shows.

    The newest full tables come first, as far as the budget allows, then the recorded tokens of the
    newest other steps.

    Args:
        run: the run's folder.
        budget: the largest number of rows.
        progress: called with (full tables read, all full tables).

    Raises:
        ConfigError: no run there, or neither records nor full tables, or damaged records.
    """
    opened = open_run(run)
    run, objective = opened.path, objective_of(opened.settings)
    every = (part for expression in rules_of(objective) for part in parts_of(expression))
    rules = [
        rule
        for rule in dict.fromkeys(every)
        if not any(isinstance(node, UnreadRule) for node in rule.walk())  # code of the run
    ]
    parts, updates, notes = [], [], []
    whole, left = set[int](), budget
    sizes, refused = _table_sizes(run), set[int]()
    for done, (step, tokens) in enumerate(sizes, 1):
        progress(done, len(sizes))
        if tokens > left:
            refused.add(step)
            continue
        try:
            tables = list(opened.tables(step))
            parts += [whole_rows(table, opened.texts, rules) for table in tables]
        except (ConfigError, BatchError, KeyError, TypeError, ValueError) as error:
            notes.append(f"Step {step} shows its recorded tokens only: {error}")
            continue
        updates += [{"step": table.step, "update": table.update} for table in tables]
        whole.add(step)
        left -= tokens
    if refused:
        notes.append(
            f"A page has at most {budget:,} rows: of the full tables of {listed(refused)} it has "
            "the recorded tokens only."
        )
    touched, counts = True, list[RecordedUpdate]()
    if parts and not table_files(run, "records"):
        notes.append("Only steps with full tables are shown: the run has no record.")
    else:
        counts = opened.record.updates
        rows, touched = _recorded(opened.record, whole, min(left, RECORDED), notes)
        if objective is not None and objective.critic:  # as rules and full tables call it
            rows = rows.rename_columns({"value": f"{objective.critic}_value"})
        parts.append(with_parts(rows, rules))
    rows = pyarrow.concat_tables(parts, promote_options="default").unify_dictionaries()
    if not len(rows):
        raise ConfigError(f"{run} has no recorded token, and no full table")
    if not pc.max(rows["staleness"]).as_py():  # every token is fresh
        rows = rows.drop_columns("staleness")
    rows = rows.sort_by([(name, "ascending") for name in ORDER])
    return PageRows(rows, updates, notes, objective, touched, counts)


def _table_sizes(run: Path) -> list[tuple[int, int]]:
    """The steps with full tables, the newest first, each with its number of tokens."""
    sizes = Counter[int]()
    for path in step_files(run, "tables"):
        sizes[step_of(path)] += 0
        with contextlib.suppress(*DAMAGED, KeyError):  # `read_tables` says what is wrong
            tokens = read_parquet(path, columns=["tokens"])["tokens"]
            sizes[step_of(path)] += pc.sum(pc.list_value_length(tokens)).as_py() or 0
    return sorted(sizes.items(), reverse=True)


def with_parts(rows: Any, rules: Iterable[Rule]) -> Any:
    """Recorded rows that say which parts of the run's rules hold; populations are not known."""
    for rule in rules:
        alone = all(isinstance(node, TOKEN_BY_TOKEN) for node in rule.walk())
        if alone and {*columns_of(rule)} <= {*rows.column_names}:
            held = pc.if_else(undecided(rule, rows), None, matching(rule, rows))
            rows = rows.append_column(part_column(rule), held)
    return rows


def _recorded(record: Record, whole: set[int], limit: int, notes: list[str]) -> tuple[Any, bool]:
    """The recorded rows of the newest steps but those in `whole`, at most `limit`; whole steps.

    Of the newest step, the first rows if it alone has more.

    And whether each token of these steps that was touched or is spurious is there.
    """
    sizes, steps, touched = Counter[int](), list[int](), True
    for update in record.updates:
        if update.step not in whole:
            sizes[update.step] += update.recorded
            touched &= update.recorded == update.recordable
    for step in sorted(sizes, reverse=True):
        if sizes[step] > limit and (steps or not limit):
            break
        limit -= sizes[step]
        steps.append(step)
    if len(steps) < len(sizes):
        left = counted(len(sizes) - len(steps), "older step")
        notes.append(f"The page has no place for the recorded tokens of {left}.")
    rows = record.rows([*COLUMNS], steps=steps)
    if limit < 0:
        rows, touched = rows[:limit], False
        notes.append(f"Of step {steps[0]}, the page has the first {len(rows):,} recorded tokens.")
    return encoded(rows), touched


def whole_rows(update: UpdateTable, texts: TokenTexts, rules: Sequence[Rule] = ()) -> Any:
    """All tokens of decided responses of an update, planned again.

    Args:
        update: the update.
        texts: of tokens.
        rules: the parts of the run's rules.
    """
    observed = observed_again(update)
    table, plan = update.table, observed.plan
    decided = table.decided.nonzero()[:, 0]
    rows = encoded(rows_of(observed, decided, (update.step, update.update), texts, context=0))
    in_phase = pyarrow.array(numpy(plan.asked_clauses.in_phase[decided]))
    rows = rows.append_column("in_phase", in_phase)
    rows = rows.drop_columns(["before", "after", "value"])  # the rows around and the table say it
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
    return rows.append_column("prompt", prompts.take(numpy(chosen)).dictionary_encode())


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
    table = observed.table
    per_token = {
        "old_entropy": observed.entropy if table.old_entropy is None else table.old_entropy,
    }
    for score in ("ref", "proxy", *observed.objective.scores):
        name = score_column(score)
        logprobs = table.columns.get(name, getattr(table, name, None))
        if logprobs is not None:
            per_token[f"{score}_gap"] = logprobs - observed.logprobs
    if table.turn_reward is not None:
        per_token["turn_reward"] = table.turn_reward
    taken = {*COLUMNS, *NAMES, "prompt", "read"}
    run_columns = {name: values for name, values in table.columns.items() if name not in taken}
    by_response = {name: run_columns.pop(name) for name in table.response_columns - taken}
    rewards = {f"reward:{name}": table.reward(name) for name in table.reward_names or ()}
    return {**run_columns, **per_token}, {**rewards, **by_response}


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
