"""Checked reading of the Parquet files of RUN/records/ and RUN/tables/."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow

from rlobj.base.arrow import DAMAGED, read_parquet, read_schema
from rlobj.base.errors import ConfigError, nearest, reported
from rlobj.base.files import parse_json
from rlobj.base.paths import step_of, there
from rlobj.runs.columns import COLUMNS, SCHEMA, SCHEMA_VERSION, VERSION_KEY
from rlobj.runs.layout import table_files

UPDATES_KEY = "rlobj.record"
"""The key of the counts of a step's updates in the metadata of a file of the record."""


class FiredClause(NamedTuple):
    """What a clause did in an update, counted over all tokens of all ranks.

    Attributes:
        effect: see the column of the record.
        clause: the same.
        tokens: number of tokens that it touched.
        judged: of them, those that the task judged.
        spurious: of them, those that are spurious.
    """

    effect: str
    clause: str
    tokens: int
    judged: int
    spurious: int


class RecordedUpdate(NamedTuple):
    """Exact counts of an update, beside its rows in the record.

    Attributes:
        step: from 1.
        update: in the step, from 1.
        tokens: number of tokens of decided responses in its phase.
        recordable: of them, those that were touched or are spurious.
        recorded: of these, those that the record has as rows.
        clauses: those that touched a token.
    """

    step: int
    update: int
    tokens: int
    recordable: int
    recorded: int
    clauses: Sequence[FiredClause]


class Record:
    """RUN/records/, whose files are checked once.

    Args:
        run: the run's folder, a folder with such files in it, or one such file.

    Raises:
        ConfigError: no run or no records there, or files that are damaged or of another version.
    """

    def __init__(self, run: Path | str) -> None:
        self.run = Path(run)
        self._schemas = checked_files(self.run, "records")

    @cached_property
    def updates(self) -> list[RecordedUpdate]:
        """The exact counts of all recorded updates."""
        updates: list[RecordedUpdate] = []
        for file, schema in self._schemas.items():
            for update in parse_json(schema.metadata[UPDATES_KEY.encode()]):
                update["clauses"] = [FiredClause(*clause) for clause in update["clauses"]]
                updates.append(RecordedUpdate(step=step_of(file), **update))
        return updates

    def rows(
        self,
        columns: Sequence[str] | None = None,
        *,
        steps: Iterable[int] | None = None,
        where: Any = None,
    ) -> Any:
        """As `read_records`."""
        names = list(COLUMNS if columns is None else columns)
        for name in names:
            if name not in COLUMNS:
                raise ConfigError(f"records have no column '{name}'.{nearest(name, COLUMNS)}")
        chosen = None if steps is None else {*steps}
        parts = [pyarrow.schema([SCHEMA.field(name) for name in names]).empty_table()]
        with sound(self.run):
            for file in self._schemas:
                if chosen is None or step_of(file) in chosen:
                    parts.append(read_parquet(file, columns=names, filters=where))
            return pyarrow.concat_tables(part.replace_schema_metadata(None) for part in parts)


def read_records(
    run: Path | str,
    columns: Sequence[str] | None = None,
    *,
    steps: Iterable[int] | None = None,
    where: Any = None,
) -> Any:
    """Read recorded tokens of a run; only the columns and rows that are asked for are read.

    Args:
        run: the run's folder.
        columns: names of columns; None = all.
        steps: only these steps, from 1; None = all.
        where: an expression of pyarrow, such as `pyarrow.pc.field("effect") == "dropped"`.

    Returns:
        A pyarrow.Table, in the order of the steps.

    Raises:
        ConfigError: no run or no records there, an unknown column, or files that are damaged or of
            another version.
    """
    return Record(run).rows(columns, steps=steps, where=where)


_AGAIN = ". If a copy was interrupted, copy it again; else delete the file"
"""What to do with a damaged file."""


@contextmanager
def sound(run: Path | str) -> Iterator[None]:
    """Turn errors of pyarrow in the block, which reads records or tables, into a ConfigError."""
    advice = ". A file is damaged, or of another kind" + _AGAIN
    what = f"the tables of {run} cannot be read"
    with reported(ConfigError, what, *DAMAGED, advice=advice):
        yield


def checked_files(run: Path, kind: str, steps: Iterable[int] | None = None) -> dict[Path, Any]:
    """The files of RUN/records or RUN/tables with their schemas, the oldest step first.

    Args:
        run: the run's folder, a folder with such files in it, or one such file.
        kind: "records" or "tables".
        steps: only files of these steps; None = all.

    Raises:
        ConfigError: no run or no such files there, or files that are damaged or of another version.
    """
    if there(run) and run.is_file():
        return {run: _checked_schema(run)}
    if not run.is_dir():
        raise ConfigError(f"{run} is not a run: there is no such folder")
    if not (files := table_files(run, kind)):
        setting = {"records": "records", "tables": "tables_every"}[kind]
        raise ConfigError(f"{run} has no {kind}: no step has one yet, or output.{setting} is 0")
    if steps is not None:
        wanted = set(steps)
        present = {step_of(file) for file in files}
        if missing := sorted(wanted - present):
            others = ", ".join(map(str, sorted(present)))
            raise ConfigError(f"{files[0].parent} has no step {missing[0]}; it has {others}")
        files = [file for file in files if step_of(file) in wanted]
    return {file: _checked_schema(file) for file in files}


def _checked_schema(file: Path) -> Any:
    """The schema of a file that is neither damaged nor of another version."""
    what = f"{file} is not a whole Parquet file"
    with reported(ConfigError, what, *DAMAGED, advice=_AGAIN):
        schema = read_schema(file)
    version = (schema.metadata or {}).get(VERSION_KEY.encode(), b"").decode(errors="replace")
    if not version:
        raise ConfigError(f"{file} was not written by rlobj: its metadata have no {VERSION_KEY}")
    if version != str(SCHEMA_VERSION):
        what = f"{file} has schema version {version}"
        raise ConfigError(f"{what}, and this rlobj reads version {SCHEMA_VERSION}")
    return schema
