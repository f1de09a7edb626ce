"""`inspect`: the tokens that a run's objective dropped, reweighted or penalised."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.base.lazy import arrow_compute
from rlobj.insight.filtering import columns_of, matching, read_filter
from rlobj.objectives.rules import Expr
from rlobj.records.reading import open_records, sound
from rlobj.reporting import visible

KEYS = ("text", "effect", "clause")
"""Tokens with the same values of these columns are one group."""
MEANS = ("prob", "entropy", "advantage", "gradient_norm", "reward", "spurious")
"""Columns whose mean a group has; `spurious` is then a share."""
_PLACE = ("step", "update", "response", "position")
SHOWN = (*_PLACE, "group", *KEYS, "before", "after", "weight", "factor", *MEANS)
"""Columns of the examples."""
UNTOUCHED = "untouched"
"""The effect of a token that no rule touched."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Inspection:
    """What an objective did to recorded tokens. All tables are pyarrow's.

    A record may hold only a share of the tokens. Then counts are estimates: each recorded token
    counts 1 / inclusion_probability.

    Attributes:
        run: the run's folder.
        question: which tokens were asked for, in words.
        steps: the first and the last step of the records that were read; (0, 0) without any.
        population: estimated number of all tokens of these steps.
        clauses: one row per effect and clause: `recorded` rows, estimated `tokens` with its
            `standard_error`, `share` of the population, weighted means of the columns `MEANS`, and
            `judged`, the tokens whose `spurious` is known.
        groups: the same per token text, effect and clause, the largest group first.
        tokens: examples: the newest tokens of each group, in different contexts.
    """

    run: Path
    question: str
    steps: tuple[int, int]
    population: float
    clauses: Any
    groups: Any
    tokens: Any

    @property
    def estimated(self) -> bool:
        """Whether the counts are estimates, because the record holds only a share of the tokens."""
        return any(error > 0 for error in self.clauses["standard_error"].to_pylist())

    @property
    def count(self) -> float:
        """The number of tokens that were asked for, maybe an estimate."""
        return math.fsum(self.clauses["tokens"].to_pylist())

    def to_json(self) -> str:
        """All of it as JSON, with control characters escaped."""
        tables = {name: getattr(self, name).to_pylist() for name in ("clauses", "groups", "tokens")}
        plain = {
            "run": str(self.run),
            "question": self.question,
            "steps": list(self.steps),
            "population": self.population,
            "estimated": self.estimated,
            **tables,
        }
        return json.dumps(_finite(plain), indent=1)

    def __str__(self) -> str:
        about = "about " if self.estimated else ""
        first, last = self.steps
        lines = [
            f"{self.run}, steps {first} to {last}: {self.question}",
            f"{about}{self.count:,.0f} of about {self.population:,.0f} tokens",
        ]
        lines += [
            f"  {row['effect']}: {about}{row['tokens']:,.0f} by {row['clause'] or 'no rule'}"
            for row in self.clauses.to_pylist()
        ]
        for row in self.groups.slice(0, 10).to_pylist():
            lines.append(f"{visible(row['text'], 40)!r} {row['effect']}: {row['tokens']:,.0f}")
        return "\n".join(lines)


def inspect(
    run: Path | str,
    step: int | None = None,
    dropped: bool = False,
    where: str | Expr | None = None,
    *,
    examples: int | None = 3,
    progress: Progress = lambda done, total: None,
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
        examples: the largest number of examples of each group; None = all tokens.
        progress: called with (rows read, all rows).

    Raises:
        ConfigError: no run or no records there, no such step, or a rule that the record cannot
            answer.
    """
    if examples is not None and examples < 0:
        raise ConfigError(f"examples is {examples}; expected 0 or more")
    rule = None if where is None else read_filter(where)
    return _Reading(Path(run), step, dropped, rule, examples).read(progress)


@dataclass
class _Reading:
    """One pass over the records, batch by batch, so that memory does not grow with the record."""

    run: Path
    step: int | None
    dropped: bool
    rule: Expr | None
    examples: int | None

    def read(self, progress: Progress) -> Inspection:
        import pyarrow

        pc = arrow_compute()
        sums: Any = None
        found: Any = None
        population, first, last = 0.0, 0, 0
        for rows in record_batches(self.run, self._columns(), self.step, progress):
            if not len(rows):
                continue
            steps = pc.min_max(rows["step"])
            first = min(first or math.inf, steps["min"].as_py())
            last = max(last, steps["max"].as_py())
            population += pc.sum(pc.divide(1.0, rows["inclusion_probability"])).as_py()
            chosen = self._chosen(rows)
            effect = pc.fill_null(chosen["effect"], UNTOUCHED)
            chosen = chosen.set_column(chosen.schema.get_field_index("effect"), "effect", effect)
            added = _sums(chosen)
            sums = added if sums is None else _added(pyarrow.concat_tables([sums, added]), KEYS)
            chosen = chosen.select(SHOWN)
            found = _newest(
                chosen if found is None else pyarrow.concat_tables([found, chosen]), self.examples
            )
        if sums is None:
            raise ConfigError(self._nothing())
        return Inspection(
            self.run,
            self._question(),
            (int(first), last),
            population,
            _means(_added(sums, KEYS[1:]), KEYS[1:], population),
            _means(sums, KEYS, population),
            found,
        )

    def _nothing(self) -> str:
        """Why no row was read."""
        pc = arrow_compute()
        steps: set[int] = set()
        for rows in record_batches(self.run, ["step"]):
            steps |= set(pc.unique(rows["step"]).to_pylist())
        if not steps:
            return f"{self.run} has no recorded token"
        known = f"steps {min(steps)} to {max(steps)}"
        return f"{self.run} has no record of step {self.step}; it has {known}"

    def _question(self) -> str:
        """The tokens that are asked for, in words."""
        touched = self.rule is None
        words = "dropped tokens" if self.dropped else "touched tokens" if touched else "tokens"
        words += "" if self.step is None else f" of step {self.step}"
        return words if self.rule is None else f"{words} with {self.rule}"

    def _columns(self) -> list[str]:
        names = [*SHOWN, "inclusion_probability", *columns_of(self.rule)]
        return list(dict.fromkeys(names))

    def _chosen(self, rows: Any) -> Any:
        """The rows that are asked for."""
        pc = arrow_compute()
        if self.dropped:
            rows = rows.filter(pc.equal(rows["effect"], "dropped"))
        elif self.rule is None:
            rows = rows.filter(pc.is_valid(rows["effect"]))
        return rows if self.rule is None else rows.filter(matching(self.rule, rows))


def _sums(rows: Any) -> Any:
    """Sums of each group over weighted rows; a mean also has the weight of its known values."""
    import pyarrow

    pc = arrow_compute()
    p = rows["inclusion_probability"].cast("float64")
    weight = pc.divide(1.0, p)
    columns = {name: rows[name] for name in KEYS}
    columns["recorded"] = pyarrow.array([1] * len(rows), "int64")
    columns["tokens"] = weight
    columns["variance"] = pc.divide(pc.subtract(1.0, p), pc.multiply(p, p))
    for name in MEANS:
        values = rows[name].cast("float64")
        columns[name] = pc.fill_null(pc.multiply(values, weight), 0.0)
        columns[f"{name} known"] = pc.if_else(pc.is_valid(values), weight, 0.0)
    return _added(pyarrow.table(columns), KEYS)


def _added(sums: Any, keys: Sequence[str]) -> Any:
    """The sums of rows with the same keys."""
    names = [name for name in sums.column_names if name not in KEYS]
    added = sums.group_by(list(keys)).aggregate([(name, "sum") for name in names])
    return added.select([*keys, *(f"{name}_sum" for name in names)]).rename_columns([*keys, *names])


def _means(sums: Any, keys: Sequence[str], population: float) -> Any:
    """Counts and means from sums, the largest count first."""
    import pyarrow

    pc = arrow_compute()
    columns = {name: sums[name] for name in (*keys, "recorded", "tokens")}
    columns["standard_error"] = pc.sqrt(sums["variance"])
    columns["share"] = pc.divide(sums["tokens"], population)
    for name in MEANS:
        known = sums[f"{name} known"]
        columns[name] = pc.if_else(pc.greater(known, 0), pc.divide(sums[name], known), None)
    columns["judged"] = sums["spurious known"]
    order = [("tokens", "descending"), *((key, "ascending") for key in keys)]
    return pyarrow.table(columns).sort_by(order)


def _newest(rows: Any, examples: int | None) -> Any:
    """The newest rows of each group that differ in their context, newest first."""
    import pyarrow

    pc = arrow_compute()
    rows = rows.sort_by([(name, "descending") for name in _PLACE[:3]] + [("position", "ascending")])
    if examples is None:
        return rows
    context = [*KEYS, "before", "after"]
    numbered = rows.select(context).append_column("row", pyarrow.array(range(len(rows)), "int64"))
    different = numbered.group_by(context).aggregate([("row", "min")]).sort_by("row_min")
    groups = different.group_by(list(KEYS), use_threads=False).aggregate([("row_min", "list")])
    chosen = pc.list_flatten(pc.list_slice(groups["row_min_list"], 0, examples))
    return rows.take(chosen.take(pc.sort_indices(chosen)))


def _finite(value: Any) -> Any:
    """The value with null for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def record_batches(
    run: Path,
    columns: Sequence[str],
    step: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Iterator[Any]:
    """The records of a run, some thousand rows at a time, as pyarrow tables.

    Raises:
        ConfigError: no run or no records there, or files that are damaged or of another version.
    """
    import pyarrow
    import pyarrow.dataset as ds

    dataset = open_records(run)
    chosen = None if step is None else ds.field("step") == step
    reading = {"batch_readahead": 2, "fragment_readahead": 1}  # memory for few batches
    with sound(run):
        total, done = dataset.count_rows(), 0
        for batch in dataset.to_batches(columns=list(columns), filter=chosen, **reading):
            done += len(batch)
            progress(done, total)
            yield pyarrow.Table.from_batches([batch])
