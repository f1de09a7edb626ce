"""Checked reading of RUN/records/ and RUN/tables/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, nearest
from rlobj.base.files import step_of
from rlobj.records.schema import COLUMNS, SCHEMA_VERSION, VERSION_KEY

_OFF = {"records": "output.records_mb=0", "tables": "output.tables_every=0"}


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
        where: an expression of pyarrow, such as `pyarrow.compute.field("effect") == "dropped"`.

    Returns:
        A pyarrow.Table, in the order of the steps.

    Raises:
        ConfigError: no run or no records there, an unknown column, or files that are damaged or of
            another version.
    """
    from pyarrow import compute

    dataset = open_records(run)
    for name in columns or ():
        if name not in dataset.schema.names:
            raise ConfigError(f"records have no column '{name}'.{nearest(name, COLUMNS)}")
    chosen = None if steps is None else compute.field("step").isin(list(steps))
    if where is not None:
        chosen = where if chosen is None else chosen & where
    with sound(run):
        return dataset.to_table(columns=None if columns is None else list(columns), filter=chosen)


@contextmanager
def sound(run: Path | str) -> Iterator[None]:
    """Turn errors of pyarrow in the block, which reads records or tables, into a ConfigError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(
            f"the tables of {run} cannot be read: {error}. A file is damaged: if a copy was "
            "interrupted, copy it again; else delete the file"
        ) from error


def open_records(run: Path | str) -> Any:
    """The records of a run as a pyarrow.dataset, whose files were checked.

    Raises:
        ConfigError: as `read_records`.
    """
    import pyarrow.dataset

    files = checked_files(Path(run), "records")
    return pyarrow.dataset.dataset([str(file) for file in files], format="parquet")


def checked_files(run: Path, kind: str, steps: Iterable[int] | None = None) -> list[Path]:
    """The files of RUN/records or RUN/tables, the oldest step first.

    Args:
        run: the run's folder, a folder with such files in it, or one such file.
        kind: "records" or "tables".
        steps: only files that begin with these steps; None = all.

    Raises:
        ConfigError: no run or no such files there, or files that are damaged or of another version.
    """
    if run.is_file():
        _check(run, COLUMNS if kind == "records" else ())
        return [run]
    if not run.is_dir():
        raise ConfigError(f"{run} is not a run: there is no such folder")
    folder = run / kind
    if not folder.is_dir() and any(run.glob("*.parquet")):
        folder = run
    if not folder.is_dir():
        raise ConfigError(
            f"{run} has no folder {kind}. Older runs have none, and neither do runs with "
            f"{_OFF[kind]}"
        )
    wanted = None if steps is None else set(steps)
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise ConfigError(f"{folder} is empty: no step was recorded yet, or {_OFF[kind]} was set")
    if wanted is not None:
        known = {step_of(file) for file in files}
        if missing := sorted(wanted - known):
            raise ConfigError(
                f"{folder} has no step {missing[0]}; it has {', '.join(map(str, sorted(known)))}"
            )
        files = [file for file in files if step_of(file) in wanted]
    for file in files:
        _check(file, COLUMNS if kind == "records" else ())
    return files


def _check(file: Path, columns: Iterable[str]) -> None:
    """Refuse a file that is damaged, of another version or without some columns."""
    import pyarrow
    from pyarrow import parquet

    try:
        schema = parquet.read_schema(file)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ConfigError(
            f"{file} is not a whole Parquet file: {error}. If a copy was interrupted, copy it "
            "again; else delete the file"
        ) from error
    version = (schema.metadata or {}).get(VERSION_KEY.encode())
    if version is None and "schema_version" in columns and "schema_version" in schema.names:
        found = parquet.read_table(file, columns=["schema_version"])["schema_version"].unique()
        version = ", ".join(map(str, found.to_pylist())).encode()  # another program wrote it
    if version is None:
        raise ConfigError(
            f"{file} was not written by rlobj: its metadata have no {VERSION_KEY}. Expected "
            f"version {SCHEMA_VERSION}"
        )
    if version != str(SCHEMA_VERSION).encode():
        raise ConfigError(
            f"{file} has schema version {version.decode(errors='replace')}; this rlobj reads "
            f"version {SCHEMA_VERSION}. Read it with the rlobj that wrote it"
        )
    for name in columns:
        found = str(schema.field(name).type) if name in schema.names else "missing"
        if found != COLUMNS[name].type:
            raise ConfigError(
                f"{file} is damaged: its column '{name}' is {found}; expected {COLUMNS[name].type}"
            )
