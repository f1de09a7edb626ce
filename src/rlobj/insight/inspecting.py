"""`inspect`: the tokens that a run's objective dropped, reweighted or penalised."""

from __future__ import annotations

import itertools
import json
import math
import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from rlobj.base.arrow import pc
from rlobj.base.errors import ConfigError, counted
from rlobj.insight import coverage, numbers
from rlobj.insight.contexts import in_responses
from rlobj.insight.coverage import Coverage
from rlobj.insight.filtering import columns_of, matching, only_recorded, read_filter, undecided
from rlobj.objectives.rules import Expr
from rlobj.reporting import visible
from rlobj.runs.columns import COLUMNS
from rlobj.runs.configuration import read_settings
from rlobj.runs.metrics import read_metrics
from rlobj.runs.reading import Record, why_no_rows

KEYS = ("text", "effect", "clause")
"""Tokens with the same values of these columns are one group."""
_key = operator.itemgetter(*KEYS)
MEANS = ("prob", "entropy", "advantage", "gradient_norm", "factor", "reward", "spurious")
"""Columns whose mean a group has; `spurious` is then a share."""
_PLACE = ("step", "update", "response", "position")
SHOWN = (*_PLACE, "turn", "group", *KEYS, "before", "after", "weight", *MEANS)
"""Columns of the examples."""


@dataclass(frozen=True, repr=False)
class Inspection:
    """What an objective did to recorded tokens. All tables are pyarrow's.

    A record may hold only a share of the tokens. Then counts are estimates: each recorded token
    counts 1 / inclusion_probability. A count is exact if every token that could be counted was
    recorded with probability 1, and unknown if the record has no token of this kind, but may lack
    some.

    Attributes:
        run: the run's folder.
        question: which tokens were asked for, in words.
        steps: the first and the last step.
        population: number of all tokens of these steps.
        exact: the population is the count of metrics.jsonl, not an estimate from the record.
        clauses: one row per effect and clause: `recorded` rows, `tokens`, `exact`, the
            `standard_error` of an estimate, `share` of the population, weighted means of the
            columns `MEANS`, and `judged`, the tokens whose `spurious` is known. Where the standard
            error is null, no token of a sample is in the row: there are at least so many tokens.
        groups: the same per token text, effect and clause, the largest group first.
        tokens: examples: the tokens of each group whose factor is farthest from 1, then the newest,
            in different contexts.
        estimated: whether the counts are estimates, because the record may lack tokens that were
            asked for.
        recorded: number of tokens of these steps that were recorded.
        at_most: the largest number of tokens that were asked for, if none of those that are
            recorded by chance is in the record (with a probability of 95%); None = unknown.
        undecided: number of tokens for which the rule has no value, because a column is null.
        known_share: the share of these tokens that metrics.jsonl has, token-weighted over the
            steps, in a step the mean of its updates; None = it has none.
        unrecorded_steps: number of finished steps that are left out: they are not recorded yet, or
            the record was switched off.
    """

    run: Path
    question: str
    steps: tuple[int, int]
    population: float
    exact: bool
    clauses: Any
    groups: Any
    tokens: Any
    estimated: bool
    recorded: int
    at_most: float | None = None
    undecided: float = 0.0
    known_share: float | None = None
    unrecorded_steps: int = 0

    @property
    def unknown(self) -> bool:
        """Whether nothing is known: no such token is recorded, and some may not be recorded."""
        return self.estimated and not len(self.clauses)

    @property
    def bounded(self) -> bool:
        """Whether `at_most` says something: it is less than half of the population."""
        return self.at_most is not None and self.at_most < self.population / 2

    @property
    def count(self) -> float:
        """The number of tokens that were asked for: an estimate if `estimated`; NaN = unknown."""
        return math.nan if self.unknown else math.fsum(self.clauses["tokens"].to_pylist())

    @property
    def standard_error(self) -> float | None:
        """That of `count`; 0 = exact, None = no token of a sample is in it."""
        errors = [error or 0.0 for error in self.clauses["standard_error"].to_pylist()]
        return math.hypot(*errors) or (None if self.estimated else 0.0)

    def examples(self, groups: int, mixed: bool = False) -> list[dict[str, Any]]:
        """The examples of the largest groups in their responses, group by group.

        Args:
            groups: the number of groups.
            mixed: take the largest group of each effect, then the second ones, and so on.
        """
        keys = list(map(_key, self.groups.to_pylist()))
        if mixed:
            counts = defaultdict[str, Iterator[int]](itertools.count)
            keys = sorted(keys, key={key: next(counts[key[1]]) for key in keys}.__getitem__)
        order = {key: i for i, key in enumerate(keys[:groups])}
        rows = [row for row in self.tokens.to_pylist() if _key(row) in order]
        return in_responses(self.run, sorted(rows, key=lambda row: order[_key(row)]))

    def to_json(self) -> str:
        """All of it as JSON, with control characters escaped and null for NaN."""
        tables = {
            name: numbers.without_nan(getattr(self, name).to_pylist())
            for name in ("clauses", "groups", "tokens")
        }
        count = None if self.unknown else self.count
        plain = {**vars(self), "run": str(self.run), "count": count, "unknown": self.unknown}
        return json.dumps({**plain, **tables}, indent=1)

    def __repr__(self) -> str:
        return "\n".join([self.title, self.total, *self.lines()])

    @property
    def title(self) -> str:
        """The run and its steps."""
        first, last = self.steps
        steps = f"steps {first} to {last}" if first < last else f"step {first}"
        left = self.unrecorded_steps
        lacks = f", without {counted(left, 'step')} that the record does not have" if left else ""
        return f"{visible(str(self.run), 200)}, {steps}{lacks}"

    @property
    def total(self) -> str:
        """How many tokens were asked for, of how many."""
        return f"{self.question}: {self.answer}"

    @property
    def answer(self) -> str:
        """How many tokens were asked for, of how many, without the question."""
        tokens = f"{'' if self.exact else '≈ '}{self.population:,.0f} tokens"
        most = numbers.share(self.at_most or 0.0, self.population) if self.bounded else ""
        if self.unknown:
            most = f", at most about {most}" if most else ""
            text = f"unknown{most}: {self.recorded:,} of {tokens} were recorded"
        elif self.estimated and self.standard_error is None:
            most = f", at most about {most}," if most else ""
            least = numbers.share(self.count, self.population)
            text = f"at least {least}{most} of {tokens}; {self.recorded:,} were recorded"
        else:
            counted_share = numbers.share(self.count, self.population)
            text = f"{'≈ ' * self.estimated}{counted_share} of {tokens}"
        if self.estimated and self.known_share is not None:
            text += f"; metrics.jsonl has {numbers.percent(self.known_share)}"
        if self.undecided:
            lack = f"{'≈ ' * self.estimated}{self.undecided:,.0f}"
            text += f"; unknown for {lack}, for which the record lacks a number"
        return text

    def lines(self) -> list[str]:
        """One line for each clause: what it did, to how many tokens, and its text."""
        lines = []
        for row in self.clauses.to_pylist():
            count = f"{about(row)}{row['tokens']:,.0f}"
            if row["standard_error"]:
                count += f" ± {row['standard_error']:,.0f}"
            line = f"{visible(row['effect'], 20)} {count} ({numbers.percent(row['share'])})"
            if row["judged"]:
                part = f"{'' if row['exact'] else '≈ '}{numbers.percent(row['spurious'])}"
                line += f", {part} of the judged ones spurious"
            lines.append(line + (f", by  {visible(row['clause'], 300)}" if row["clause"] else ""))
        return lines


def about(row: Mapping[str, Any], least: str = "at least ") -> str:
    """What stands before the count of a row of `clauses` or `groups`."""
    return "" if row["exact"] else "≈ " if row["standard_error"] else least


def inspect(
    run: Path | str,
    step: int | None = None,
    dropped: bool = False,
    where: str | Expr | None = None,
    *,
    text: str | None = None,
    examples: int | None = 3,
) -> Inspection:
    """Read what an objective did to tokens from the records of a run.

    Without `where`, these are the tokens that a rule touched: dropped, reweighted, masked, switched
    or penalised. With `where`, these are all recorded tokens that the rule selects, touched or not.

    Args:
        run: the run's folder.
        step: only this step, from 1.
        dropped: only dropped tokens.
        where: a rule on recorded columns, such as "(prob < 0.001) & (spurious < 1)". Each token is
            judged by itself; true is 1 and false is 0.
        text: only tokens with this text.
        examples: the largest number of examples of each group; None = all tokens.

    Raises:
        ConfigError: no run or no records there, no such step, or a rule that the record cannot
            answer.
    """
    if examples is not None and examples < 0:
        raise ConfigError(f"examples is {examples}; expected 0 or more")
    run, rule = Path(run), None if where is None else read_filter(where)
    read_settings(run)  # refuses a folder that is no run
    columns = columns_of(rule)
    names = sorted({*SHOWN, *coverage.COLUMNS, *columns})
    record = Record(run)
    rows = record.rows(names, steps=None if step is None else [step])
    lines, sampling = read_metrics(run), record.sampling
    tokens = numbers.tokens_by_step(lines, step)
    finished = len(tokens)
    if sampling is not None:  # others are not written yet, or the record was switched off
        tokens = {at: count for at, count in tokens.items() if at in sampling.steps}
    if not len(rows) and (sampling is None or not tokens):
        raise ConfigError(_nothing(record, step))
    for name in columns:
        if rows[name].null_count == len(rows) > 0:
            meaning = COLUMNS[name].meaning
            raise ConfigError(f"'{name}' is unknown for all tokens of {run}: {meaning}")
    steps, held = set(pc.unique(rows["step"]).to_pylist()), Coverage.of(record, rows, tokens)
    exact = steps <= tokens.keys()
    population = math.fsum(tokens.values()) if exact else _tokens(rows)
    question = "dropped tokens" if dropped else "touched tokens" if rule is None else "tokens"
    question += "" if text is None else f" {visible(text, 40)!r}"
    question += "" if rule is None else f" with {rule}"
    rows, undecided_tokens = _chosen(rows, dropped or rule is None, dropped, text), 0.0
    if rule is not None:
        undecided_tokens = _tokens(rows.filter(undecided(rule, rows)))
        rows = rows.filter(matching(rule, rows))
    touched = dropped or rule is None or only_recorded(rule)
    sure = held.touched if touched else held.everything
    unseen = None if sure else held.unseen(touched)
    sampled = pc.any(pc.less(rows["inclusion_probability"], 1)).as_py()
    at_most = None if unseen is None or sampled else _tokens(rows) + undecided_tokens + unseen
    return Inspection(
        run=run,
        question=question,
        steps=(min(steps | tokens.keys()), max(steps | tokens.keys())),
        population=population,
        exact=exact,
        clauses=_summed(rows, KEYS[1:], population, held, touched),
        groups=_summed(rows, KEYS, population, held, touched),
        tokens=_farthest(rows.select(SHOWN), examples),
        estimated=not sure,
        recorded=held.recorded,
        at_most=at_most,
        undecided=undecided_tokens,
        known_share=_known_share(lines, tokens, rule, dropped) if text is None else None,
        unrecorded_steps=finished - len(tokens),
    )


def _tokens(rows: Any) -> float:
    """For how many tokens recorded rows stand."""
    return pc.sum(pc.divide(1.0, rows["inclusion_probability"].cast("float64"))).as_py() or 0.0


_IN_METRICS = {
    "advantage > 0": "advantage/positive_share",
    "advantage < 0": "advantage/negative_share",
}
"""Rules whose share of the tokens metrics.jsonl has."""


def _known_share(
    lines: Sequence[numbers.Line], tokens: Mapping[int, float], rule: Expr | None, dropped: bool
) -> float | None:
    """The share of the tokens of some steps that metrics.jsonl has; None = it has none."""
    lines = [line for line in lines if line["step"] in tokens]
    if dropped:
        if rule is not None or any("tokens/dropped" not in line for line in lines):
            return None
        return numbers.total(lines, "tokens/dropped") / max(numbers.total(lines, "tokens/step"), 1)
    return numbers.share_in_metrics(lines, _IN_METRICS.get(str(rule), ""))


def _nothing(record: Record, step: int | None) -> str:
    """Why no row was read."""
    ends = pc.min_max(record.rows(["step"])["step"]).as_py()
    if ends["min"] is None:
        return f"{record.run} has no recorded token: {why_no_rows(record.run)}"
    return f"{record.run} has no record of step {step}; it has steps {ends['min']} to {ends['max']}"


def _chosen(rows: Any, touched: bool, dropped: bool, text: str | None) -> Any:
    """The rows that may be asked for; the effect of an untouched token becomes "untouched"."""
    if dropped:
        rows = rows.filter(pc.equal(rows["effect"], "dropped"))
    elif touched:
        rows = rows.filter(pc.is_valid(rows["effect"]))
    if text is not None:
        rows = rows.filter(pc.equal(rows["text"], text))
    effect = pc.fill_null(rows["effect"], "untouched")
    return rows.set_column(rows.schema.get_field_index("effect"), "effect", effect)


def _summed(
    rows: Any, keys: Sequence[str], population: float, held: Coverage, touched: bool
) -> Any:
    """Counts and means of the rows with the same keys, the largest count first.

    Args:
        rows: of the record.
        keys: columns, `effect` among them.
        population: the number of all tokens.
        held: how the record holds them.
        touched: only touched or spurious tokens were asked for.
    """
    p = rows["inclusion_probability"].cast("float64")
    weight = pc.divide(1.0, p)
    columns = {name: rows[name] for name in keys}
    columns["recorded"] = pyarrow.array([1] * len(rows), "int64")
    columns["tokens"] = weight
    chance = held.by_chance(p)
    columns["variance"] = pc.divide(pc.subtract(1.0, p), pc.multiply(p, p))
    for name in MEANS:
        values = rows[name].cast("float64")
        columns[name] = pc.multiply(values, weight)
        columns[f"{name} known"] = pc.if_else(pc.is_valid(values), weight, 0.0)
        columns[f"{name} by chance"] = pc.if_else(pc.is_valid(values), chance, 0)
    names = [name for name in columns if name not in keys]
    sums = pyarrow.table(columns).group_by(list(keys)).aggregate([(name, "sum") for name in names])
    summary = {name: sums[name] for name in keys}
    summary |= {name: sums[f"{name}_sum"] for name in ("recorded", "tokens")}
    acted = pc.or_(pc.not_equal(summary["effect"], "untouched"), touched)
    summary["exact"] = pc.or_(pc.and_(acted, held.touched), held.everything)
    error, nobody = pc.sqrt(sums["variance_sum"]), pyarrow.scalar(None, "float64")
    summary["standard_error"] = pc.if_else(
        pc.or_(summary["exact"], pc.greater(error, 0)), error, nobody
    )
    summary["share"] = pc.divide(summary["tokens"], max(population, 1.0))
    for name in MEANS:
        # Those that are recorded for sure, because they are spurious, say nothing of the others.
        drawn = pc.greater(sums[f"{name} by chance_sum"], 0)
        telling = pc.or_(pc.or_(summary["exact"], acted), drawn)
        judged = pc.if_else(telling, sums[f"{name} known_sum"], 0.0)
        mean_of = pc.divide(sums[f"{name}_sum"], sums[f"{name} known_sum"])
        summary[name] = pc.if_else(telling, mean_of, nobody)
        if name == "spurious":
            summary["judged"] = judged
    order = [("tokens", "descending"), *((key, "ascending") for key in keys)]
    return pyarrow.table(summary).sort_by(order)


def _farthest(rows: Any, examples: int | None) -> Any:
    """The rows of each group that were changed most, then the newest, in different contexts."""
    change = pc.round(pc.abs(pc.subtract(rows["factor"], 1.0)), 3)
    keys = [(name, "descending") for name in ("change", *_PLACE[:3])] + [("position", "ascending")]
    order = pc.sort_indices(rows.select(_PLACE).append_column("change", change), sort_keys=keys)
    if examples is None:
        return rows.take(order)
    context = [*KEYS, "before", "after"]
    numbered = rows.select(context).append_column("row", pyarrow.array(np.argsort(order)))
    different = numbered.group_by(context).aggregate([("row", "min")]).sort_by("row_min")
    groups = different.group_by(list(KEYS), use_threads=False).aggregate([("row_min", "list")])
    chosen = pc.list_flatten(pc.list_slice(groups["row_min_list"], 0, examples))
    return rows.take(order.take(chosen.take(pc.sort_indices(chosen))))
