"""`replay`: what other objectives and rules do to the tokens that a run recorded."""

from __future__ import annotations

import math
from operator import length_hint
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from rlobj.base.errors import ConfigError
from rlobj.insight.inspecting import Progress, record_batches
from rlobj.insight.replaying.candidates import (
    RECORDED,
    Candidates,
    Sweep,
    read_candidates,
)
from rlobj.insight.replaying.collecting import Collected
from rlobj.insight.replaying.exact import Exact
from rlobj.insight.replaying.result import Replay
from rlobj.insight.replaying.sampled import Filters, collect_records
from rlobj.records.reading import checked_files, sound
from rlobj.records.tables import read_tables


def replay(
    tables: Any,
    objectives: Any = (),
    *,
    sweep: Sweep | None = None,
    step: int | None = None,
    tokens: bool = False,
    trust: bool = False,
    progress: Progress = lambda done, total: None,
) -> Replay:
    """What other objectives and rules do to recorded tokens, on a CPU and without a model.

    On full tables, each objective plans each recorded update again, with its own advantages, and
    its loss is differentiated by the recorded log-probs. A rule selects tokens, and nothing is
    planned for it. On records, rules are estimated token by token.

    Args:
        tables: the folder of a run, whose full tables are read if it has any, else its records; a
            folder of Parquet files of either kind, such as RUN/records, or one such file; updates
            from `read_tables`; or a pyarrow table with the columns of a record.
        objectives: names of presets, preset files, Objectives and rules, or a mapping from names
            to them; the recorded objective always comes first.
        sweep: "NAME=FROM..TO" or "NAME=FROM..TO:COUNT", or {NAME: values}: the name stands for a
            number in a rule, such as "prob < TAU".
        step: only this step, from 1.
        tokens: also return what is done to each token; for full tables.
        trust: import the code that recorded objectives, presets and rules name by its path.
        progress: called with (done, total).

    Raises:
        ConfigError: nothing recorded there, an unknown preset, a text that is no rule, a sweep that
            no rule reads, code without `trust`, or nothing that can be replayed.
    """
    candidates, found = read_candidates(objectives, sweep, trust), Collected()
    path = Path(tables) if isinstance(tables, str | Path) else None
    steps = None if step is None else [step]
    exact = _has_full_tables(path) if path else not hasattr(tables, "column_names")
    if exact:
        replayed = Exact(candidates, found, tokens)
        if path is None:
            updates = (each for each in tables if step in (None, each.step))
            count = length_hint(tables)
        else:
            updates = read_tables(path, steps, trust=trust)
            count = len(checked_files(path, "tables", steps))
        with sound(path or "the updates"):
            for done, _ in enumerate(replayed.steps(updates), 1):
                progress(done, max(done, count))
    else:
        filters = Filters(candidates, found)
        batches = [tables]
        if path is not None:
            batches = record_batches(path, filters.columns, step, progress)
        collect_records(filters, batches, step)
    return _results(str(path or "a table"), exact, found, candidates)


def _has_full_tables(path: Path) -> bool:
    """Whether a path has full tables, of a run or as files; else it may have records."""
    if any(path.glob("tables/*.parquet")):
        return True
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    try:
        return bool(files) and "tokens" in parquet.read_schema(files[0]).names
    except (pyarrow.ArrowException, OSError):
        return False  # the reader of records says what is wrong


def _results(source: str, exact: bool, found: Collected, candidates: Candidates) -> Replay:
    """The tables of the results.

    Raises:
        ConfigError: nothing was recorded, or nothing of what was asked for can be replayed.
    """
    if RECORDED not in found.single:
        raise ConfigError(f"{source} has no recorded token, or none of this step")
    names = [*candidates.objectives, *candidates.rules, *candidates.swept]
    if names and all(name in found.refused for name in names):
        reasons = "\n".join(f"{name}: {why}" for name, why in found.refused.items())
        raise ConfigError(f"nothing of this can be replayed on {source}\n{reasons}")
    steps = found.single[RECORDED]
    rows = (found.objectives(), found.both(), found.values(), found.steps())
    return Replay(
        source,
        exact,
        sorted(steps),
        math.fsum(sums["tokens"].value for sums in steps.values()),
        found.equal if exact else None,
        *(_table(each) for each in rows),
        pyarrow.concat_tables(found.rows, promote_options="default") if found.rows else None,
        found.refused,
        list(found.notes),
        candidates.name,
    )


def _table(rows: list[dict[str, Any]]) -> Any:
    """Rows as a table; NaN becomes null."""
    return pyarrow.Table.from_pylist(
        [{key: None if value != value else value for key, value in row.items()} for row in rows]
    )
