"""`inspect.html`: the tokens of a run as a page that needs no network.

The rows of a page: all tokens of steps with full tables, and the recorded tokens of the others.

A row is a token of an update, in the order of step, update, group, response and position, with the
columns of the record. Counts are Σ 1 / inclusion_probability. Tokens that belong to another phase
of the objective are shown, too, and count 0: their inclusion_probability is infinite.

The rows of a page as elements of HTML, from which `assets/store.js` reads one column at a time.

An element has base64 of deflate of little-endian numbers. The element `store-meta` has, as JSON:

    size               the number of rows
    columns            name -> {type, per, element, values}
    updates            the whole updates: step, update

type is float32 (null is NaN), int32, float64, bool (bytes 0, 1, 2 = null) or text; then the numbers
are int32 places in the list of `values`, an element of its own. `per` is "token" or "response".
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import torch
from numpy.typing import NDArray
from pyarrow import parquet
from pydantic import ValidationError

from rlobj.base.arrow import pc
from rlobj.base.errors import BatchError, ConfigError, counted
from rlobj.base.files import a_file, packaged, write_whole
from rlobj.base.interleaved import Interleaved
from rlobj.base.paths import step_of
from rlobj.base.targets import without_imports
from rlobj.config import run_folder
from rlobj.insight.coverage import Coverage
from rlobj.insight.filtering import TOKEN_BY_TOKEN, columns_of, deciding, matching, undecided
from rlobj.insight.numbers import share, tokens_by_step
from rlobj.objectives.explanation import rule_columns
from rlobj.objectives.frame import Frame
from rlobj.objectives.objective import Objective
from rlobj.objectives.planning import flat
from rlobj.objectives.rules import NAMES, Expr, Rule
from rlobj.objectives.rules.columns import COLUMNS as RULE_COLUMNS
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.rules.nodes import Column, Compare, Constant, Cut, Logic, When
from rlobj.objectives.statistics import SingleProcess
from rlobj.records.observed import POLICY, ObservedUpdate
from rlobj.records.reading import COLUMNS, Record, read_records, sound, why_no_rows
from rlobj.records.rows import numbers, numpy, rows_of
from rlobj.records.tables import UpdateTable, read_tables
from rlobj.records.texts import TokenTexts
from rlobj.reporting import visible
from rlobj.reporting.pages import definition_list, fill, pack, render_page

__all__ = ["write_inspection_page"]

_asset = partial(packaged, "rlobj.insight.page")
VIEWS = ("page", "scales", "filter", "details", "responses", "tokens", "planes", "inspect")


def write_inspection_page(
    run: Path | str,
    path: Path | str | None = None,
    *,
    progress: run_folder.Progress = lambda done, total: None,
) -> Path:
    """Write a page that shows the tokens of a run and what its objective did to them.

    The page is one file without a network: a browser opens it from the disk. Steps with full tables
    show all tokens, the others their recorded tokens; the page has at most a million of both.
    Nothing in the run's folder is executed.

    Args:
        run: the run's folder; the run may still be going on.
        path: the file; None = `inspect.html` in the run's folder.
        progress: called with (full tables read, all full tables).

    Returns:
        The file.

    Raises:
        ConfigError: no run there, or neither records nor full tables, or damaged ones.
        RunError: the disk refused.
    """
    run = Path(run)
    path = run / "inspect.html" if path is None else Path(path)
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
    page = read_rows(run, progress=progress)
    tokens = tokens_by_step(run_folder.read_metrics(run))
    rules = _rules(page.objective)
    given: list[tuple[str, Any]] = [(field, rule) for rule, field in rules.items()]
    if page.objective and page.objective.mismatch:
        given.append(("mismatch", page.objective.mismatch))
    name = visible(run_folder.named_folder(run).name, 100)
    body = {"title": escape(name), "facts": definition_list(_facts(page, tokens, given))}
    body["notes"] = escape(" ".join(visible(note, 500) for note in _notes(page)))
    about = {
        "tokens": tokens,
        "touched": page.touched,
        "rules": [_described_rule(rule, field) for rule, field in rules.items()],
        "columns": {
            **{n: {"meaning": each[0]} for n, each in RULE_COLUMNS.items()},
            **{n: {"unit": each.unit, "meaning": each.meaning} for n, each in COLUMNS.items()},
        },
    }
    meta, columns = store_data(page)
    content = render_page(
        f"{name}: tokens",
        fill(_asset("assets/inspect.html"), body),
        styles=_asset("assets/inspect.css"),
        scripts=[_asset(f"assets/{name}.js") for name in ("store", *VIEWS)],
        data={"about": about, "store-meta": meta},
        packed=columns,
        libraries=["echarts"],
    )
    write_whole(path, content)
    return path


def _objective(settings: Mapping[str, Any]) -> Objective | None:
    """The objective of a run; None if this version or this computer cannot read it."""
    try:
        with without_imports():
            return Objective(**settings["objective"])
    except (ConfigError, ValidationError, TypeError, KeyError):
        return None


def _rules(objective: Objective | None) -> dict[Expr, str]:
    """The rules and numbers that decide about tokens, each with the fields that hold it."""
    found = () if objective is None else deciding(objective).values()
    return {rule: ", ".join(fields) for rule, fields in found}


def parts_of(expression: Expr) -> list[Rule]:
    """The parts of a rule, or of the conditions in a number."""
    rules = [node.rule for node in expression.walk() if isinstance(node, When)]
    if isinstance(expression, Rule):
        rules = [expression]
    either = [each for rule in rules for each in flat(rule, Logic, "|")]
    return list(dict.fromkeys(part for each in either for part in flat(each, Logic, "&")))


def part_column(part: Rule) -> str:
    """The column that says of each token whether a part of the run's rules holds."""
    return f"holds:{part}"


def _described_rule(rule: Expr, field: str) -> dict[str, Any]:
    """A rule of the run for the panel and the planes of the page."""
    parts = [
        {"text": str(part), "column": part_column(part), "bounds": [*_bounds(part)]}
        for part in parts_of(rule)
    ]
    return {"field": field, "parts": parts}


def _bounds(rule: Expr | None) -> Iterator[dict[str, Any]]:
    """The bounds of a rule on single columns; that of a cut has no number yet."""
    match rule:
        case Compare(operator, Column(name), Constant(value)):
            below = operator.startswith("<")
            yield {"text": str(rule), "column": name, "value": value, "below": below}
        case Cut(side, Column(name)):
            yield {"text": str(rule), "column": name, "value": None, "below": side == "bottom"}
            yield from _bounds(rule.within)


def _facts(
    page: PageRows, tokens: Mapping[int, float], given: Iterable[tuple[str, Any]]
) -> dict[str, str]:
    """The head of the page: what decides, steps, and counts of touched and spurious tokens."""
    rows = page.rows
    facts: dict[str, str] = {}
    for name, each in given:
        facts[name] = f"{facts[name]}; {each}" if name in facts else str(each)
    steps = pc.unique(rows["step"]).to_pylist()
    facts["steps"] = f"{min(steps)} to {max(steps)}" if len(steps) > 1 else f"{steps[0]}"
    probability, effect = rows["inclusion_probability"], rows["effect"].cast("string")
    exact = tokens.keys() >= {*steps}  # the record may be ahead of metrics.jsonl
    total = sum(tokens[step] for step in steps) if exact else _count(probability)
    facts["tokens"] = f"{'' if exact else '≈ '}{total:,.0f}"
    marked = {name: pc.equal(effect, name) for name in pc.unique(effect).drop_null().to_pylist()}
    for name, chosen in (marked | {"spurious": rows["spurious"]}).items():
        if len(p := probability.filter(chosen)):
            about = "≈ " * bool(pc.min(p).as_py() < 1)
            facts[visible(name, 20)] = about + share(_count(p), total)
    return {name: visible(text, 400) for name, text in facts.items()}


def _count(probability: Any) -> float:
    """The number of tokens that stand in the page with these probabilities."""
    return pc.sum(pc.divide(1.0, probability)).as_py()


def _notes(page: PageRows) -> list[str]:
    """What is exact and what is estimated, and what is left out."""
    whole = {update["step"] for update in page.updates}
    others = {*pc.unique(page.rows["step"]).to_pylist()} - whole
    lines = [f"Steps with all their tokens: {listed(whole)}."] if whole else []
    if others:
        sampled = "touched and spurious tokens, and a sample of the others"
        if not page.touched:
            sampled = "a sample of the tokens"
        lines.append(
            f"{'Of the other steps' if whole else 'Of each step'}, this page has what was "
            f"recorded: {sampled}. A count that uses "
            "a sample is marked ≈, or ≥ where the sample has no such token."
        )
    return [*lines, *page.notes]


BUDGET = 1_000_000
"""Rows of a page."""
CONTEXTS = 50_000
"""Recorded rows of a page that have the text before and after them."""
ORDER = ("step", "update", "group", "response", "position")
PER_RESPONSE = ("step", "update", "group", "response", "reward", "length", "prompt")
"""Columns with one value per response; so are rewards by name, `reward:NAME`."""


@dataclass(frozen=True)
class PageRows:
    """The tokens of a page.

    Attributes:
        rows: a pyarrow table with the columns of the record, and for whole updates also logprob,
            old_logprob, old_entropy, collision, old_collision, ref_gap, proxy_gap, length, prompt,
            turn_reward, read (what the policy read before the token), `reward:NAME`, and an
            objective's own columns. `holds:PART` says whether a part of the run's rules holds; null
            = not known. A response without tokens has one row, whose position is -1.
        updates: step and update of the whole updates.
        notes: what is left out or shown in another way than the reader may expect, in sentences.
        objective: that of the run; None if it cannot be read.
        touched: each token that was touched or is spurious is there.
    """

    rows: Any
    updates: list[dict[str, Any]]
    notes: list[str]
    objective: Objective | None = None
    touched: bool = True


def read_rows(
    run: Path | str,
    budget: int = BUDGET,
    *,
    trust: bool = False,
    progress: run_folder.Progress = lambda done, total: None,
) -> PageRows:
    """Read the tokens that a page of a run shows.

    The newest full tables come first, as far as the budget allows. All other steps have their
    recorded tokens; if these are too many, a random part of them.

    Args:
        run: the run's folder.
        budget: the largest number of rows.
        trust: import the code that an objective names by its path.
        progress: called with (full tables read, all full tables).

    Raises:
        ConfigError: no run there, or neither records nor full tables, or damaged records.
    """
    run = Path(run)
    objective = _objective(run_folder.read_settings(run))
    rules = [part for expression in _rules(objective) for part in parts_of(expression)]
    texts = TokenTexts(_vocabulary(run))
    parts, updates, notes = [], [], []
    whole, left, refused = set[int](), budget, set[int]()
    sizes = _table_sizes(run)
    for done, (step, tokens) in enumerate(sizes, 1):
        progress(done, len(sizes))
        if tokens > left:
            refused.add(step)
            continue
        try:
            with sound(run):
                tables = list(read_tables(run, [step], trust=trust))
                parts += [whole_rows(table, texts, rules) for table in tables]
        except (ConfigError, BatchError, KeyError, TypeError, ValueError) as error:
            notes.append(f"Step {step} shows its recorded tokens only: {error}")
            continue
        updates += [{"step": table.step, "update": table.update} for table in tables]
        whole.add(step)
        left -= tokens
    if refused:
        notes.append(
            f"A page has at most {budget:,} rows, so {counted(len(refused), 'step')} with full "
            f"tables show their recorded tokens only: {listed(refused)}"
        )
    touched = True
    if parts and not any((run / "records").glob("*")):
        notes.append("Only steps with full tables are shown: the run has no record.")
    else:
        rows, touched = _recorded(run, whole, left, notes)
        parts.append(with_parts(rows, rules))
    rows = pyarrow.concat_tables(parts, promote_options="default").unify_dictionaries()
    if not len(rows):
        raise ConfigError(f"{run} has no recorded token: ", why_no_rows(run))
    rows = rows.sort_by([(name, "ascending") for name in ORDER])
    return PageRows(rows, updates, notes, objective, touched)


def _table_sizes(run: Path) -> list[tuple[int, int]]:
    """The steps with full tables, the newest first, each with its number of tokens."""
    sizes: dict[int, int] = {}
    for path in (run / "tables").glob("step-*.parquet"):
        count = 0
        damaged = (pyarrow.ArrowException, OSError, KeyError)  # `read_tables` says what is wrong
        with contextlib.suppress(*damaged):
            tokens = parquet.read_table(a_file(path), columns=["tokens"])["tokens"]
            count = pc.sum(pc.list_value_length(tokens)).as_py() or 0
        sizes[step_of(path)] = sizes.get(step_of(path), 0) + count
    return sorted(sizes.items(), reverse=True)


def listed(steps: set[int]) -> str:
    """The first and last of some steps."""
    found = sorted(steps)
    return ", ".join(map(str, found)) if len(found) < 9 else f"{found[0]} to {found[-1]}"


def whole_rows(update: UpdateTable, texts: TokenTexts, rules: Sequence[Rule] = ()) -> Any:
    """All tokens of decided responses of an update, planned again.

    Args:
        update: the update.
        texts: of tokens.
        rules: the parts of the run's rules.
    """
    table, unknown = update.table, torch.full_like(update.table.logprobs, torch.nan)
    plan = update.objective.plan([table], update.state, clauses=True)
    assert plan.clauses is not None
    current = {name: unknown if (x := getattr(table, name)) is None else x for name in POLICY}
    observed = ObservedUpdate(
        update.objective, update.state, table, plan, update.sequences, **current
    )
    decided, ids = table.decided.nonzero()[:, 0], table.ids
    assert ids is not None
    probability = torch.where(plan.clauses.in_phase, 1.0, torch.inf)
    place = (update.step, update.update)
    rows = encoded(rows_of(observed, decided, probability, place, texts, context=0))
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
    found: dict[tuple[int, int], str] = {}
    for i, (_, tokens) in enumerate(update.sequences):
        for place, read in tokens.gaps if isinstance(tokens, Interleaved) else ():
            found[i, place] = found.get((i, place), "") + texts.joined(read)
    return found


def _more_columns(
    observed: ObservedUpdate,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Columns of rules that the record lacks: with one value per token, and per response."""
    table, current, old = observed.table, observed.logprobs, observed.old_logprobs
    found = {
        "logprob": current,
        "old_logprob": old,
        "old_entropy": observed.entropy if table.old_entropy is None else table.old_entropy,
        "collision": observed.collision,
        "old_collision": observed.collision if table.old_collision is None else table.old_collision,
    }
    for score in ("ref", "proxy", *observed.objective.scores):
        name = score_column(score)
        logprobs = table.columns.get(name, getattr(table, name, None))
        if logprobs is not None:
            found[f"{score}_gap"] = logprobs - current
    if table.turn_reward is not None:
        found["turn_reward"] = table.turn_reward
    taken = {*COLUMNS, *NAMES, "prompt", "read"}
    own = {name: values for name, values in table.columns.items() if name not in taken}
    rewards = {f"reward:{name}": table.reward(name) for name in table.reward_names or ()}
    return {**own, **found}, {"length": table.lengths, **rewards}


def _held(update: UpdateTable, rules: Iterable[Rule]) -> Iterator[tuple[Rule, torch.Tensor]]:
    """The tokens on which each part of the run's rules holds, bool [N].

    Parts are left out that read what the update lacks.
    """
    for rule in rules:
        reads = rule_columns([("the page", rule)], None, update.objective.scores)
        with contextlib.suppress(BatchError):
            frame = Frame([update.table], reads, SingleProcess(), update.state)
            held = frame.rule(rule)
            frame.check()
            yield rule, held


def with_parts(rows: Any, rules: Iterable[Rule]) -> Any:
    """Recorded rows that say which parts of the run's rules hold; a sample has no populations."""
    for rule in rules:
        alone = all(isinstance(node, TOKEN_BY_TOKEN) for node in rule.walk())
        if alone and {*columns_of(rule)} <= {*rows.column_names}:
            held = pc.if_else(undecided(rule, rows), None, matching(rule, rows))
            rows = rows.append_column(part_column(rule), held)
    return rows


def _recorded(run: Path, whole: set[int], limit: int, notes: list[str]) -> tuple[Any, bool]:
    """The recorded rows of all steps but those in `whole`, at most about `limit`.

    And whether each token of these steps that was touched or is spurious is there.
    """
    others = ~pc.field("step").isin(list(whole)) if whole else None
    record = Record(run)
    dataset = record.dataset()
    with sound(run):
        count = dataset.count_rows(filter=others)
        part = min(1.0, limit / max(count, 1))
        columns = [name for name in COLUMNS if name not in ("before", "after")]
        rows = dataset.to_table(columns=columns if count > CONTEXTS else None, filter=others)
    touched = part == 1 and (not len(rows) or Coverage.of(record, rows, {}).touched)
    if part < 1:
        notes.append(
            f"The page shows {part:.0%} of {count:,} recorded tokens, chosen at random, because "
            "it has no place for more"
        )
        kept = np.random.default_rng(0).random(len(rows)) < part
        at = rows.schema.get_field_index("inclusion_probability")
        less = pc.multiply(rows["inclusion_probability"], pyarrow.scalar(part, "float32"))
        rows = rows.set_column(at, "inclusion_probability", less).filter(pyarrow.array(kept))
    return recorded_rows(rows), touched


def recorded_rows(rows: Any) -> Any:
    """Rows of the record with the log-probabilities that `insight.filtering` computes from them."""
    for name, source in (("logprob", "prob"), ("old_logprob", "old_prob")):
        values = pc.ln(rows[source].cast("float64")).cast("float32")
        rows = rows.append_column(name, values)
    return encoded(rows)


def encoded(rows: Any) -> Any:
    """The rows with dictionaries for texts."""
    for i, column in enumerate(rows.schema):
        if column.type == pyarrow.string():
            rows = rows.set_column(i, column.name, rows[column.name].dictionary_encode())
    return rows.drop_columns("schema_version")


def _vocabulary(run: Path) -> Any:
    """The texts of tokens, as `TokenTexts` asks a tokenizer for them.

    They are those of the newest checkpoint's tokenizer, or as the record has them. No code of the
    run is executed, and nothing is downloaded.
    """
    from tokenizers import Tokenizer

    for checkpoint in reversed(run_folder.checkpoints(run)):
        file = checkpoint / "model" / "tokenizer.json"
        if not file.is_file():
            continue
        with contextlib.suppress(Exception):  # tokenizers raises nothing narrower
            found = Tokenizer.from_file(str(file))
            return SimpleNamespace(backend_tokenizer=found, convert_ids_to_tokens=found.id_to_token)
    known: dict[int, str] = {}
    with contextlib.suppress(ConfigError):
        rows = read_records(run, ["token", "text"]).group_by("token").aggregate([("text", "min")])
        known = dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return SimpleNamespace(
        backend_tokenizer=None, convert_ids_to_tokens=lambda token: known.get(token, f"⟨{token}⟩")
    )


def store_data(page: PageRows) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The value of `store-meta`, and the packed columns by the ids of their elements."""
    rows, ids = page.rows, dict[bytes, str]()  # equal columns share an element

    def element(content: bytes) -> str:
        return ids.setdefault(pack(content), f"column-{len(ids)}")

    keys = np.stack([_numbers(rows[name]) for name in ORDER[:4]])
    first = np.ones(len(rows), bool)
    first[1:] = (keys[:, 1:] != keys[:, :-1]).any(0)
    real = _numbers(rows["position"]) >= 0
    starts = np.flatnonzero(first)
    before = np.concatenate([[0], np.cumsum(real)])[starts].astype(np.int32)
    responses = rows.take(starts)
    tokens = rows if real.all() else rows.filter(pyarrow.array(real))  # a copy
    columns = {"start": {"per": "response", **_described(pyarrow.array(before), element)}}
    for name in rows.column_names:
        each = name in PER_RESPONSE or name.startswith("reward:")
        column = (responses if each else tokens)[name].combine_chunks()
        if column.null_count < len(column):
            per = "response" if each else "token"
            columns[name] = {"per": per, **_described(column, element)}
    meta = {"size": len(tokens), "columns": columns, "updates": page.updates}
    return meta, {name: packed for packed, name in ids.items()}


def _described(column: Any, element: Callable[[bytes], str]) -> dict[str, Any]:
    """How to read a column, of which `element` keeps the bytes."""
    found: dict[str, Any] = {}
    if pyarrow.types.is_dictionary(column.type):
        used = column.cast("string").dictionary_encode("encode")  # null is one of the values
        kind, values = "text", used.indices.to_numpy()
        found["values"] = element(json.dumps(used.dictionary.to_pylist()).encode())
    elif pyarrow.types.is_boolean(column.type):
        kind, values = "bool", pc.fill_null(column.cast("uint8"), 2).to_numpy()
    else:
        values = _numbers(column)
        if values.dtype == np.int64:
            small = abs(values).max(initial=0) < 2**31
            values = values.astype(np.int32 if small else np.float64)
        kind = str(values.dtype)
    return {"type": kind, "element": element(values.tobytes()), **found}


def _numbers(column: Any) -> NDArray[Any]:
    """The numbers of a column; null becomes NaN."""
    floating = pyarrow.types.is_floating(column.type)
    return np.asarray(column.cast("float32") if floating else column)
