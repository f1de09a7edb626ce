"""The rows of a page: all tokens of steps with full tables, and the recorded tokens of the others.

A row is a token of an update, in the order of step, update, group, response and position, with the
columns of the record. Counts are Σ 1 / inclusion_probability. Tokens that belong to another phase
of the objective are shown, too, and count 0: their inclusion_probability is infinite.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow

from rlobj.base.arrow import pc, read_parquet
from rlobj.base.errors import BatchError, ConfigError, counted
from rlobj.base.files import a_file
from rlobj.base.paths import step_of
from rlobj.insight.coverage import Coverage
from rlobj.insight.filtering import TOKEN_BY_TOKEN, columns_of, matching, undecided
from rlobj.insight.page.rules import objective_of, part_column, parts_of, rules_of
from rlobj.insight.page.updates import encoded, whole_rows
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import Rule
from rlobj.objectives.rules.custom import StandIn
from rlobj.runs.checkpoints import checkpoints
from rlobj.runs.columns import COLUMNS
from rlobj.runs.configuration import read_settings
from rlobj.runs.layout import step_files, table_files
from rlobj.runs.metrics import Progress
from rlobj.runs.reading import Record, read_records, sound, why_no_rows
from rlobj.runs.tables import read_tables
from rlobj.runs.texts import TokenTexts

BUDGET = 1_000_000
"""Rows of a page."""
CONTEXTS = 50_000
"""Recorded rows of a page that have the text before and after them."""
ORDER = ("step", "update", "group", "response", "position")


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
    progress: Progress = lambda done, total: None,
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
    objective = objective_of(read_settings(run))
    every = (part for expression in rules_of(objective) for part in parts_of(expression))
    rules = list(dict.fromkeys(every))
    texts = TokenTexts(_vocabulary(run))
    parts, updates, notes = [], [], []
    for code in [rule for rule in rules if any(isinstance(node, StandIn) for node in rule.walk())]:
        notes.append(
            f"It is not known on which tokens {code} holds: no code that a run names is imported "
            f"for its page. If you trust the code: rlobj replay {run} --rule RULE"
        )
        rules.remove(code)
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
    if parts and not table_files(run, "records"):
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
    for path in step_files(run, "tables"):
        count = 0
        damaged = (pyarrow.ArrowException, OSError, KeyError)  # `read_tables` says what is wrong
        with contextlib.suppress(*damaged):
            tokens = read_parquet(a_file(path), columns=["tokens"])["tokens"]
            count = pc.sum(pc.list_value_length(tokens)).as_py() or 0
        sizes[step_of(path)] = sizes.get(step_of(path), 0) + count
    return sorted(sizes.items(), reverse=True)


def listed(steps: set[int]) -> str:
    """The numbers of some steps, or of many: how many they are, the first and the last."""
    numbers = sorted(steps)
    if len(numbers) < 9:
        return ", ".join(map(str, numbers))
    return f"{len(numbers)} steps from {numbers[0]} to {numbers[-1]}"


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


def _vocabulary(run: Path) -> Any:
    """The texts of tokens, as `TokenTexts` asks a tokenizer for them.

    They are those of the newest checkpoint's tokenizer, or as the record has them. No code of the
    run is executed, and nothing is downloaded.
    """
    from tokenizers import Tokenizer

    for checkpoint in reversed(checkpoints(run)):
        file = checkpoint / "model" / "tokenizer.json"
        if not file.is_file():
            continue
        with contextlib.suppress(Exception):  # tokenizers raises nothing narrower
            tokenizer = Tokenizer.from_file(str(file))
            return SimpleNamespace(
                backend_tokenizer=tokenizer, convert_ids_to_tokens=tokenizer.id_to_token
            )
    texts: dict[int, str] = {}
    with contextlib.suppress(ConfigError):
        rows = read_records(run, ["token", "text"]).group_by("token").aggregate([("text", "min")])
        texts = dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return SimpleNamespace(
        backend_tokenizer=None, convert_ids_to_tokens=lambda token: texts.get(token, f"⟨{token}⟩")
    )
