"""`inspect`: the tokens that a run's objective dropped, reweighted or penalised.

What came out of a run: accuracy or reward, entropy, dropped and spurious tokens.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from rlobj.base.arrow import pc
from rlobj.base.errors import ConfigError, counted
from rlobj.base.files import a_file, parse_json
from rlobj.config.run_folder import ACCURACY, measure_of, read_metrics, read_settings
from rlobj.insight import coverage
from rlobj.insight.coverage import Coverage
from rlobj.insight.filtering import columns_of, matching, only_recorded, read_filter, undecided
from rlobj.objectives.rules import Expr
from rlobj.records.reading import COLUMNS, read_design, read_records, why_no_rows
from rlobj.reporting import visible

Line = Mapping[str, Any]
Z95 = 1.959964
"""Half-width of a 95% interval in standard errors."""


@dataclass(frozen=True)
class Outcome:
    """What came out of a run.

    Attributes:
        lines: metrics.jsonl.
    """

    lines: Sequence[Line]

    @classmethod
    def read(cls, run: Path | str) -> Outcome:
        """Read a run.

        Raises:
            ConfigError: no run there, or a run without a finished step.
        """
        read_settings(Path(run))  # an error if it is no run
        found = cls(read_metrics(Path(run)))
        if not found.steps:
            raise ConfigError(f"{run} has no finished step yet")
        return found

    @property
    def steps(self) -> list[Line]:
        """The lines of finished steps, without the evaluation before the first."""
        return [line for line in self.lines if "reward/mean" in line]

    @property
    def window(self) -> int:
        """The number of steps at the beginning and at the end that are compared."""
        return max(1, min(10, len(self.steps) // 4))

    def measures(self) -> dict[str, str]:
        """The numbers of the run as texts, by their names on the screen.

        Held-out numbers have their 95% interval for other samples on the same problems; with one
        sample per problem, for other problems.
        """
        found: dict[str, str] = {}
        measure = measure_of(self.lines)
        known = [line for line in self.lines if line.get(measure.key) is not None]
        for when, line in zip(("before", "after"), (*known[:1], *known[-1:]), strict=False):
            value, width = line[measure.key], Z95 * measure.error(line)
            low, high = value - width, value + width
            if measure is ACCURACY:
                low, high = max(low, 0), min(high, 1)
            found[f"{measure.name} {when}"] = f"{value:.3f}  [{low:.3f}, {high:.3f}]"
        if known and known[-1]["step"] < self.steps[-1]["step"]:
            late = f"not measured after step {known[-1]['step']}"
            name = f"{measure.name} after"
            found[name] = late if len(known) == 1 else f"{found[name]}, {late}"
        steps, window = self.steps, self.window
        first, last = steps[:window], steps[-window:]
        when = f"first/last {window} steps" if window > 1 else "first/last step"
        for name, key in (("reward", "reward/mean"), ("entropy", "policy/entropy")):
            ends = [mean(part, key) for part in (first, last)]
            if None not in ends:
                found[f"{name}, {when}"] = "{:.3f} → {:.3f}".format(*ends)
        if total(steps, "tools/calls"):
            found |= {f"{name}, {when}": text for name, text in _calls(first, last).items()}
        broken = [mean(part, "turns/at_broken") or 0.0 for part in (first, last)]
        if any(broken):
            found[f"environment failed, {when}"] = "{:.3f} → {:.3f} of the responses".format(
                *broken
            )
        tokens = total(steps, "tokens/step")
        found["tokens dropped"] = share(total(steps, "tokens/dropped"), tokens)
        if any(line.get("spurious/tokens") is not None for line in steps):
            spurious, caught, dropped = (
                total(steps, f"spurious/{name}") for name in ("tokens", "caught", "dropped")
            )
            found["spurious tokens"] = share(spurious, tokens)
            found[f"spurious, {when}"] = _trend(first, last)
            if dropped:
                found["precision of the rule"] = f"{share(caught, dropped)} of {dropped:,.0f}"
                found["recall of the rule"] = f"{share(caught, spurious)} of {spurious:,.0f}"
        return found


def share(part: float, whole: float) -> str:
    """A count and its share of another: `358 (0.092%)`."""
    return f"{part:,.0f} ({percent(part / whole)})" if part and whole else f"{part:,.0f}"


def percent(value: float) -> str:
    """A share with two digits: `0.092%`."""
    value = 100 * value
    digits = 1 if 99 < value < 100 else max(0, min(1 - math.floor(math.log10(value or 10)), 4))
    return f"{value:.{digits}f}%"


def total(lines: Sequence[Line], name: str) -> float:
    """The sum of a metric over lines; lines without it count 0."""
    return math.fsum(line.get(name) or 0.0 for line in lines)


def mean(lines: Sequence[Line], name: str) -> float | None:
    """The mean of a metric over the lines that have it; None if no line has."""
    values = [line[name] for line in lines if line.get(name) is not None]
    return math.fsum(values) / len(values) if values else None


def _calls(first: Sequence[Line], last: Sequence[Line]) -> dict[str, str]:
    """Calls of tools in two parts of a run, and the accuracy of responses with and without one."""
    parts = first, last
    counts = [(total(part, "tools/calls"), total(part, "response/count")) for part in parts]
    failed = [total(part, "tools/errors") / max(total(part, "tools/calls"), 1) for part in parts]
    ends = {
        "calls per response": [calls / responses for calls, responses in counts],
        "calls that failed": failed if any(failed) else [None, None],
        "accuracy with a call": [mean(part, "tools/accuracy_with") for part in parts],
        "accuracy without": [mean(part, "tools/accuracy_without") for part in parts],
    }
    return {
        name: " → ".join("none" if value is None else f"{value:.3f}" for value in values)
        for name, values in ends.items()
        if values != [None, None]
    }


def _trend(first: Sequence[Line], last: Sequence[Line]) -> str:
    """The share of spurious tokens in two parts of a run, and whether it changed beyond noise."""
    found = [total(part, "spurious/tokens") for part in (first, last)]
    tokens = [max(total(part, "tokens/step"), 1) for part in (first, last)]
    before, after = (a / b for a, b in zip(found, tokens, strict=True))
    noise = 2 * math.hypot(*(math.sqrt(a) / b for a, b in zip(found, tokens, strict=True)))
    word = "shrank" if after < before - noise else "grew" if after > before + noise else ""
    return f"{percent(before)} → {percent(after)}, {word or 'hardly changed'}"


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
        known = [error or 0.0 for error in self.clauses["standard_error"].to_pylist()]
        return math.hypot(*known) or (None if self.estimated else 0.0)

    def examples(self, groups: int, mixed: bool = False) -> list[dict[str, Any]]:
        """The examples of the largest groups in their responses, group by group.

        Args:
            groups: the number of groups.
            mixed: take the largest group of each effect, then the second ones, and so on.
        """
        keys = list(map(_key, self.groups.to_pylist()))
        if mixed:
            numbers = defaultdict[str, Iterator[int]](itertools.count)
            keys = sorted(keys, key={key: next(numbers[key[1]]) for key in keys}.__getitem__)
        order = {key: i for i, key in enumerate(keys[:groups])}
        rows = [row for row in self.tokens.to_pylist() if _key(row) in order]
        return in_responses(self.run, sorted(rows, key=lambda row: order[_key(row)]))

    def to_json(self) -> str:
        """All of it as JSON, with control characters escaped and null for NaN."""
        tables = {
            name: without_nan(getattr(self, name).to_pylist())
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
        most = share(self.at_most or 0.0, self.population) if self.bounded else ""
        if self.unknown:
            most = f", at most about {most}" if most else ""
            text = f"unknown{most}: {self.recorded:,} of {tokens} were recorded"
        elif self.estimated and self.standard_error is None:
            most = f", at most about {most}," if most else ""
            least = share(self.count, self.population)
            text = f"at least {least}{most} of {tokens}; {self.recorded:,} were recorded"
        else:
            text = f"{'≈ ' * self.estimated}{share(self.count, self.population)} of {tokens}"
        if self.estimated and self.known_share is not None:
            text += f"; metrics.jsonl has {percent(self.known_share)}"
        if self.undecided:
            lack = f"{'≈ ' * self.estimated}{self.undecided:,.0f}"
            text += f"; unknown for {lack}, for which the record lacks a number"
        return text

    def lines(self) -> list[str]:
        """One line for each clause: what it did, to how many tokens, and its text."""
        found = []
        for row in self.clauses.to_pylist():
            count = f"{about(row)}{row['tokens']:,.0f}"
            if row["standard_error"]:
                count += f" ± {row['standard_error']:,.0f}"
            line = f"{visible(row['effect'], 20)} {count} ({percent(row['share'])})"
            if row["judged"]:
                part = f"{'' if row['exact'] else '≈ '}{percent(row['spurious'])}"
                line += f", {part} of the judged ones spurious"
            found.append(line + (f", by  {visible(row['clause'], 300)}" if row["clause"] else ""))
        return found


def about(row: Mapping[str, Any], least: str = "at least ") -> str:
    """What stands before the count of a row of `clauses` or `groups`."""
    return "" if row["exact"] else "≈ " if row["standard_error"] else least


def without_nan(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with None for NaN."""
    return [{k: None if v != v else v for k, v in row.items()} for row in rows]


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
    rows = read_records(run, names, steps=None if step is None else [step])
    design, read = read_design(run), tokens_by_step(run, step)
    finished = len(read)
    if design is not None:  # others are not written yet, or the record was switched off
        read = {at: count for at, count in read.items() if at in design[1]}
    if not len(rows) and (design is None or not read):
        raise ConfigError(_nothing(run, step))
    for name in columns:
        if rows[name].null_count == len(rows) > 0:
            meaning = COLUMNS[name].meaning
            raise ConfigError(f"'{name}' is unknown for all tokens of {run}: {meaning}")
    steps, held = set(pc.unique(rows["step"]).to_pylist()), Coverage.of(run, rows, read)
    exact = steps <= read.keys()
    estimated = pc.sum(pc.divide(1.0, rows["inclusion_probability"])).as_py()
    population = math.fsum(read.values()) if exact else estimated
    rows = _chosen(rows, dropped or rule is None, dropped, text)
    words = "dropped tokens" if dropped else "touched tokens" if rule is None else "tokens"
    words += "" if text is None else f" {visible(text, 40)!r}"
    words += "" if rule is None else f" with {rule}"
    undecided_tokens = 0.0
    if rule is not None:
        undecided_tokens = _tokens(rows.filter(undecided(rule, rows)))
        rows = rows.filter(matching(rule, rows))
    touched = dropped or rule is None or only_recorded(rule)
    by_clause, by_text = (
        _summed(rows, keys, population, held, touched) for keys in (KEYS[1:], KEYS)
    )
    sure = held.touched if touched else held.everything
    unseen = None if sure else held.unseen(touched)
    chance = pc.any(pc.less(rows["inclusion_probability"], 1)).as_py()
    examples_of_groups = _farthest(rows.select(SHOWN), examples)
    ends = (min(steps | read.keys()), max(steps | read.keys()))
    return Inspection(
        run=run,
        question=words,
        steps=ends,
        population=population,
        exact=exact,
        clauses=by_clause,
        groups=by_text,
        tokens=examples_of_groups,
        estimated=not sure,
        recorded=held.recorded,
        at_most=None if unseen is None or chance else _tokens(rows) + undecided_tokens + unseen,
        undecided=undecided_tokens,
        known_share=_known_share(run, read, rule, dropped) if text is None else None,
        unrecorded_steps=finished - len(read),
    )


def tokens_by_step(run: Path, step: int | None = None) -> dict[int, float]:
    """The number of tokens of each step, or of one, as metrics.jsonl counts them."""
    known = [(line["step"], line.get("tokens/step")) for line in read_metrics(run)]
    return {at: n for at, n in known if n is not None and step in (None, at)}


def _tokens(rows: Any) -> float:
    """For how many tokens recorded rows stand."""
    return pc.sum(pc.divide(1.0, rows["inclusion_probability"].cast("float64"))).as_py() or 0.0


_IN_METRICS = {
    "advantage > 0": "advantage/positive_share",
    "advantage < 0": "advantage/negative_share",
}
"""Rules whose share of the tokens metrics.jsonl has."""


def _known_share(
    run: Path, tokens: Mapping[int, float], rule: Expr | None, dropped: bool
) -> float | None:
    """The share of the tokens of some steps that metrics.jsonl has; None = it has none."""
    lines = [line for line in read_metrics(run) if line["step"] in tokens]
    if dropped:
        if rule is not None or any("tokens/dropped" not in line for line in lines):
            return None
        return total(lines, "tokens/dropped") / max(total(lines, "tokens/step"), 1)
    return share_in_metrics(lines, _IN_METRICS.get(str(rule), ""))


def share_in_metrics(lines: Sequence[Line], name: str) -> float | None:
    """The token-weighted mean of a metric over steps; None if a step with tokens lacks it."""
    steps = [line for line in lines if line.get("tokens/step")]
    if not steps or any(line.get(name) is None for line in steps):
        return None
    tokens = total(steps, "tokens/step")
    return math.fsum(line[name] * line["tokens/step"] for line in steps) / tokens


def _nothing(run: Path, step: int | None) -> str:
    """Why no row was read."""
    ends = pc.min_max(read_records(run, ["step"])["step"]).as_py()
    if ends["min"] is None:
        return f"{run} has no recorded token: {why_no_rows(run)}"
    return f"{run} has no record of step {step}; it has steps {ends['min']} to {ends['max']}"


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
    found = {name: sums[name] for name in keys}
    found |= {name: sums[f"{name}_sum"] for name in ("recorded", "tokens")}
    acted = pc.or_(pc.not_equal(found["effect"], "untouched"), touched)
    found["exact"] = pc.or_(pc.and_(acted, held.touched), held.everything)
    error, nobody = pc.sqrt(sums["variance_sum"]), pyarrow.scalar(None, "float64")
    found["standard_error"] = pc.if_else(
        pc.or_(found["exact"], pc.greater(error, 0)), error, nobody
    )
    found["share"] = pc.divide(found["tokens"], max(population, 1.0))
    for name in MEANS:
        # Those that are recorded for sure, because they are spurious, say nothing of the others.
        drawn = pc.greater(sums[f"{name} by chance_sum"], 0)
        telling = pc.or_(pc.or_(found["exact"], acted), drawn)
        known = pc.if_else(telling, sums[f"{name} known_sum"], 0.0)
        mean_of = pc.divide(sums[f"{name}_sum"], sums[f"{name} known_sum"])
        found[name] = pc.if_else(telling, mean_of, nobody)
        if name == "spurious":
            found["judged"] = known
    order = [("tokens", "descending"), *((key, "ascending") for key in keys)]
    return pyarrow.table(found).sort_by(order)


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


def in_responses(run: Path, tokens: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Recorded tokens with all text `before` and `after` them, where │ follows the prompt.

    In a conversation, │ is between what the policy wrote and what it read.

    A token stays as it is if the sample table of its step is missing or damaged, or if the text of
    its response does not have the recorded context.

    Args:
        run: the run's folder.
        tokens: rows of the record with step, response, before, text and after.
    """
    return [{**token, **_place(token, _sample(run, token))} for token in tokens]


def _sample(run: Path, token: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The row of a token's response in the sample table of its step."""
    file = run / "samples" / f"step-{token['step']:06d}.parquet"
    chosen = pc.field("id") == token["response"]
    try:
        known = parquet.read_schema(a_file(file)).names
        columns = [name for name in ("prompt", "response", "conversation") if name in known]
        rows = parquet.read_table(file, columns=columns, filters=chosen).to_pylist()
        return _in_turn(rows[0], token.get("turn") or 0) if rows else None
    except (pyarrow.ArrowException, OSError, ValueError, LookupError, TypeError):
        return None  # not there, or damaged


def _in_turn(row: Mapping[str, Any], turn: int) -> Mapping[str, Any]:
    """The row as if a turn of its conversation were the response, and the text that follows it."""
    turns = parse_json(row.get("conversation") or "[]")
    if not turns:
        return row
    said = [str(part) for each in turns for part in (each["text"], each["observation"])]
    rest = [each for each in said[2 * turn + 1 :] if each]
    return {
        "prompt": "│".join([row["prompt"], *said[: 2 * turn]]),
        "response": said[2 * turn],
        "rest": "".join(f"│{each}" for each in rest),
    }


def _place(token: Mapping[str, Any], sample: Mapping[str, Any] | None) -> dict[str, Any]:
    """The token's place in the text of its response."""
    if sample is None:
        return {}
    before, end = token["before"], token["text"] + token["after"]
    response = sample["response"]
    for at in range(len(response) + 1):
        start, rest = response[max(at - len(before), 0) : at], response[at : at + len(end)]
        # the context may begin in the prompt, and end with special tokens, which the text lacks
        if before.endswith(start) and end.startswith(rest):
            after = response[at + len(token["text"]) :] + sample.get("rest", "")
            return {"before": f"{sample['prompt']}│{response[:at]}", "after": after}
    return {}
