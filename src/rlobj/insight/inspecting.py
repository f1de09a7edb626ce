"""`inspect`: the tokens that a run's objective dropped, reweighted or penalised."""

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow

from rlobj.base.arrow import pc
from rlobj.base.errors import ConfigError, Setting
from rlobj.insight import numbers
from rlobj.insight.filtering import matching, read_filter, undecided
from rlobj.insight.opening import OpenRun, observed_again, open_run
from rlobj.objectives.critic import value_names
from rlobj.objectives.rules import Expr
from rlobj.reporting import visible
from rlobj.reporting.markdown import escaped_lines, markdown_table
from rlobj.reporting.terminal import number
from rlobj.runs.layout import step_files
from rlobj.runs.reading import RecordedUpdate
from rlobj.runs.rows import rows_of
from rlobj.runs.traces import is_traces

KEYS = ("text", "effect", "clause")
"""Tokens with the same values of these columns are one group."""
_key = operator.itemgetter(*KEYS)
MEANS = (
    *("prob", "entropy", "advantage", "gradient_norm", "factor", "reward", "spurious"),
    *("staleness", "value"),
)
"""Columns whose mean a group has; `spurious` is then a share."""
_PLACE = ("step", "update", "response", "position")
SHOWN = (*_PLACE, "turn", "group", "rollout", "began", *KEYS, "before", "after", "weight", *MEANS)
"""Columns of the examples."""


@dataclass(frozen=True, repr=False)
class Inspection:
    """What an objective did to tokens. All tables are pyarrow's, and every count is exact.

    Attributes:
        run: the run's folder.
        question: which tokens were asked for, in words.
        steps: that were read.
        population: number of all tokens of these steps.
        clauses: one row per effect and clause: `tokens`, the number of tokens, null where only
            those in the record are known; `recorded`, the number of those that were read; `share`
            of the population; means of the columns `MEANS` over those that were read; and `judged`,
            the number of tokens whose `spurious` is known.
        groups: the same per token text, effect and clause, the largest group first.
        tokens: examples: the tokens of each group whose factor is farthest from 1, then the newest,
            in different contexts.
        recorded: number of tokens that were read.
        complete: each token that was asked for was read. Otherwise the record has the first
            `output.records` of an update, and `groups` counts these.
        undecided: number of tokens for which the rule has no value, because a column is null.
        tabled: the tokens were read from the full tables of these steps, and not from the record.
    """

    run: Path
    question: str
    steps: tuple[int, ...]
    population: int
    clauses: Any
    groups: Any
    tokens: Any
    recorded: int
    complete: bool
    undecided: int = 0
    tabled: bool = False

    @property
    def count(self) -> int | None:
        """The number of tokens that were asked for; None if only those in the record are known."""
        counts = self.clauses["tokens"].to_pylist()
        return None if None in counts else sum(counts)

    def examples(self, groups: int) -> list[dict[str, Any]]:
        """The examples of the largest groups, group by group."""
        keys = map(_key, self.groups.slice(0, groups).to_pylist())
        order = {key: i for i, key in enumerate(keys)}
        rows = [row for row in self.tokens.to_pylist() if _key(row) in order]
        return sorted(rows, key=lambda row: order[_key(row)])

    def to_json(self) -> str:
        """All of it as JSON, with control characters escaped and null for NaN."""
        tables = {
            name: numbers.without_nan(getattr(self, name).to_pylist())
            for name in ("clauses", "groups", "tokens")
        }
        return json.dumps(
            {**vars(self), "run": str(self.run), "count": self.count, **tables}, indent=1
        )

    def __repr__(self) -> str:
        return "\n".join([self.title, self.total, *self.lines()])

    def _repr_markdown_(self) -> str:
        """The clauses, and the largest groups with their means."""
        head = [*KEYS, "recorded", *MEANS]
        rows = self.groups.slice(0, 10).select(head).to_pylist()
        cells = [
            [
                visible(x, 60) if isinstance(x, str) else number(x, 3 * isinstance(x, float))
                for x in row.values()
            ]
            for row in rows
        ]
        text = escaped_lines(repr(self))
        return f"{text}\n\n{markdown_table(head, cells)}" if rows else text

    @property
    def title(self) -> str:
        """The run and its steps."""
        tabled = " with full tables" if self.tabled else ""
        return f"{visible(str(self.run), 200)}, {numbers.listed(self.steps)}{tabled}"

    @property
    def total(self) -> str:
        """How many tokens were asked for, of how many."""
        text = f"{self.recorded:,} recorded"
        if self.count is not None:
            text = f"{numbers.share(self.count, self.population)} of {self.population:,} tokens"
        if not self.complete and self.count is not None:
            text += f"; {self.recorded:,} are recorded"
        if self.undecided:
            text += f"; the rule has no value for {self.undecided:,}"
        return f"{self.question}: {text}"

    def lines(self) -> list[str]:
        """One line for each clause: what it did, to how many tokens, and its text."""
        lines = []
        for row in self.clauses.to_pylist():
            count = f"{row['recorded']:,} recorded"
            if row["tokens"] is not None:
                count = f"{row['tokens']:,} ({numbers.percent(row['share'])})"
            line = f"{visible(row['effect'], 20)} {count}"
            if row["judged"]:
                line += f", {numbers.percent(row['spurious'])} of the judged ones spurious"
            lines.append(line + (f", by  {visible(row['clause'], 300)}" if row["clause"] else ""))
        return lines


def inspect(
    run: Path | str,
    step: int | None = None,
    dropped: bool = False,
    where: str | Expr | None = None,
    *,
    text: str | None = None,
    examples: int | None = 3,
    trust: bool = False,
) -> Inspection:
    """Read what an objective did to tokens from the records and full tables of a run.

    Without `where`, these are the tokens that a rule touched: dropped, reweighted, masked, switched
    or penalised. With `where`, these are all tokens that the rule selects, touched or not, of the
    steps with full tables.

    Args:
        run: the run's folder.
        step: only this step, from 1.
        dropped: only dropped tokens.
        where: a rule on recorded columns, such as "(prob < 0.001) & (spurious < 1)". Each token is
            judged by itself; true is 1 and false is 0.
        text: only tokens with this text.
        examples: the largest number of examples of each group; None = all tokens.
        trust: with `where`, import the code that the run's objective names by its path.

    Raises:
        ConfigError: no run or no records there, no such step, or a rule that no step can answer.
    """
    traces = is_traces(Path(run))
    where = "prob <= 1" if traces and where is None else where
    opened = OpenRun(Path(run), {}) if traces else open_run(run)
    values = [f"{name}_value" for name in value_names(opened.settings.get("objective") or {})]
    rule = None if where is None else read_filter(where, values)
    question = "dropped tokens" if dropped else "touched tokens" if rule is None else "tokens"
    question += "" if text is None else f" {visible(text, 40)!r}"
    question += "" if rule is None else f" with {rule}"
    read = _from_record(opened, step) if rule is None else _from_tables(opened, step, rule, trust)
    rows, complete = read.rows, read.complete
    if dropped:
        rows = rows.filter(pc.equal(rows["effect"], "dropped"))
    if text is not None:
        rows = rows.filter(pc.equal(rows["text"], text))
    clauses = _summed(rows, KEYS[1:], read.population, complete)
    if text is None and rule is None:
        clauses = _counted(clauses, read.updates, read.population, dropped)
    return Inspection(
        run=opened.path,
        question=question,
        steps=read.steps,
        population=read.population,
        clauses=clauses,
        groups=_summed(rows, KEYS, read.population, complete),
        tokens=_farthest(rows, examples).select([*SHOWN]),
        recorded=len(rows),
        complete=complete,
        undecided=0 if dropped or text is not None else read.undecided,
        tabled=rule is not None and not traces,
    )


class _Read(NamedTuple):
    """What was read of a run.

    Attributes:
        rows: the tokens; the effect of an untouched one is "untouched".
        steps: that were read.
        population: number of all tokens of these steps.
        complete: each token that was asked for is a row.
        undecided: number of tokens for which the rule has no value.
        updates: the counts of the record.
    """

    rows: Any
    steps: tuple[int, ...]
    population: int
    complete: bool
    undecided: int = 0
    updates: Sequence[RecordedUpdate] = ()


def _from_record(run: OpenRun, step: int | None) -> _Read:
    """The touched tokens of the record."""
    record = run.record
    updates = [update for update in record.updates if step in (None, update.step)]
    if not updates:
        steps = {update.step for update in record.updates}
        has = f"it has {numbers.listed(steps)}" if steps else "no step has an update"
        which = "" if step is None else f" of step {step}"
        raise ConfigError(f"{run.path} has no record{which}; {has}")
    touched = pc.is_valid(pc.field("effect"))
    return _Read(
        rows=record.rows(SHOWN, steps=None if step is None else [step], where=touched),
        steps=tuple(sorted({update.step for update in updates})),
        population=sum(update.tokens for update in updates),
        complete=all(update.recorded == update.recordable for update in updates),
        updates=updates,
    )


def _from_tables(run: OpenRun, step: int | None, rule: Expr, trust: bool) -> _Read:
    """All tokens that a rule selects, of the steps with full tables."""
    if not is_traces(run.path) and not step_files(run.path, "tables"):
        tables = Setting("output.tables_every", 10)
        raise ConfigError(f"{run.path} has no full tables for a rule: use ", tables)
    parts, steps = list[Any](), set[int]()
    population = unknown = 0
    for update in run.tables(step, trust):
        observed, place = observed_again(update), (update.step, update.update)
        every = observed.plan.asked_clauses.in_phase.nonzero()[:, 0]
        rows = rows_of(observed, every, place, run.texts, context=0)
        if critic := update.objective.critic:  # as rules call it
            rows = rows.append_column(f"{critic}_value", rows["value"])
        selected = matching(rule, rows).to_numpy(zero_copy_only=False)
        unknown += pc.sum(undecided(rule, rows)).as_py() or 0
        parts.append(rows_of(observed, every[selected], place, run.texts))
        population += len(every)
        steps.add(update.step)
    rows = pyarrow.concat_tables(parts)
    effect = pc.fill_null(rows["effect"], "untouched")
    rows = rows.set_column(rows.schema.get_field_index("effect"), "effect", effect)
    return _Read(rows, tuple(sorted(steps)), population, True, unknown)


def _summed(rows: Any, keys: Sequence[str], population: int, complete: bool) -> Any:
    """Counts and means of the rows with the same keys, the largest count first."""
    columns = {name: rows[name] for name in keys}
    columns |= {name: rows[name].cast("float64") for name in MEANS}
    means = [(name, "mean") for name in MEANS]
    grouped = pyarrow.table(columns).group_by(list(keys), use_threads=False)
    sums = grouped.aggregate([([], "count_all"), ("spurious", "count"), *means])
    count = sums["count_all"]
    summary = {name: sums[name] for name in keys} | {"recorded": count}
    summary["tokens"] = count if complete else pyarrow.nulls(len(sums), pyarrow.int64())
    summary["share"] = pc.divide(summary["tokens"].cast("float64"), max(population, 1))
    summary |= {name: sums[f"{name}_mean"] for name in MEANS}
    summary["judged"] = sums["spurious_count"]
    order = [("recorded", "descending"), *((key, "ascending") for key in keys)]
    return pyarrow.table(summary).sort_by(order)


def _counted(
    clauses: Any, updates: Sequence[RecordedUpdate], population: int, dropped: bool
) -> Any:
    """The clauses with the exact counts of the record, the largest first."""
    counts: dict[tuple[str, str], list[int]] = {}
    for fired in (clause for update in updates for clause in update.clauses):
        if fired.effect == "dropped" or not dropped:
            sums = counts.setdefault((fired.effect, fired.clause), [0, 0, 0])
            sums[:] = (a + b for a, b in zip(sums, fired[2:], strict=True))
    read = {(row["effect"], row["clause"]): row for row in clauses.to_pylist()}
    rows = []
    for key, (tokens, judged, spurious) in counts.items():
        row = dict.fromkeys(MEANS) | {"recorded": 0} | read.get(key, {})
        row |= dict(zip(KEYS[1:], key, strict=True))
        row |= {"tokens": tokens, "share": tokens / max(population, 1), "judged": judged}
        rows.append(row | {"spurious": spurious / judged if judged else None})
    table = pyarrow.Table.from_pylist(rows, clauses.schema)
    return table.sort_by(
        [("tokens", "descending"), ("effect", "ascending"), ("clause", "ascending")]
    )


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
