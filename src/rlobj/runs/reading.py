"""Checked reading of the Parquet files of RUN/records/ and RUN/tables/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
from pyarrow import types

from rlobj.base.arrow import DAMAGED, pc, read_parquet, read_schema
from rlobj.base.errors import ConfigError, Message, Setting, counted, nearest, reported
from rlobj.base.files import a_file, parse_json
from rlobj.base.paths import step_of, there
from rlobj.runs.columns import COLUMNS, OPTIONAL, SCHEMA, SCHEMA_VERSION, VERSION_KEY
from rlobj.runs.layout import is_run, table_files

DESIGN_KEY = "rlobj.record"
"""The key of the `Design` of a file of the record in its metadata."""


class Design(NamedTuple):
    """What a file of the record has, besides its rows.

    Attributes:
        halvings: how often all inclusion probabilities were halved; 0 = each token that was touched
            or is spurious is recorded.
        ranks: number of processes that wrote such files of its steps.
        steps: the steps that it has, also those without a row; None = unknown.
    """

    halvings: int
    ranks: int
    steps: Sequence[int] | None

    @classmethod
    def read(cls, schema: Any) -> Design | None:
        """That of a file with this schema; None for files of other programs."""
        try:
            design = cls(**parse_json((schema.metadata or {})[DESIGN_KEY.encode()]))
            numbers = (design.halvings, design.ranks, *(design.steps or ()))
            sound = all(isinstance(number, int) and 0 <= number < 2**31 for number in numbers)
            return design if sound and design.halvings < 1000 else None
        except (LookupError, TypeError, ValueError):
            return None


class Sampling(NamedTuple):
    """How the tokens of a record were sampled.

    Attributes:
        halvings: how often all inclusion probabilities were halved.
        steps: those that the record has whole.
    """

    halvings: int
    steps: set[int]


_MOST = {
    "step": (2**31, "a step, from 1"),
    "inclusion_probability": (1, "a probability above 0, at most 1"),
}
"""The largest value of columns whose values are above 0, and what is expected in them."""


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
    def sampling(self) -> Sampling | None:
        """None = unknown, for files of other programs."""
        files: dict[int, list[Design]] = {}
        halvings = 0
        for schema in self._schemas.values():
            design = Design.read(schema)
            if design is None or design.steps is None:
                return None
            halvings = max(halvings, design.halvings)
            for step in design.steps:
                files.setdefault(step, []).append(design)
        whole = {step for step, designs in files.items() if len(designs) >= designs[0].ranks}
        return Sampling(halvings, whole)

    def dataset(self, columns: Iterable[str] | None = None) -> Any:
        """The record as a pyarrow.dataset; its files must have these columns, None = all of them.

        Those of `OPTIONAL` may be missing, and are null then. Raises as `read_records`.
        """
        from pyarrow import dataset  # which imports pandas

        checked = dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
        parquet_format = dataset.ParquetFileFormat(default_fragment_scan_options=checked)
        names = list(COLUMNS if columns is None else columns)
        for file, schema in self._schemas.items():
            _check_columns(str(file), schema, names)
        files = [str(file) for file in self._schemas]
        return dataset.dataset(files, schema=SCHEMA, format=parquet_format)

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
        chosen = None if steps is None else pc.field("step").isin(list(steps))
        if where is not None:
            chosen = where if chosen is None else chosen & where
        dataset = self.dataset(names)
        with sound(self.run):
            return checked_rows(dataset.to_table(columns=names, filter=chosen), names)


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
        columns: names of columns; None = all. A file of another program needs only these.
        steps: only these steps, from 1; None = all.
        where: an expression of pyarrow, such as `pyarrow.pc.field("effect") == "dropped"`.

    Returns:
        A pyarrow.Table, in the order of the steps.

    Raises:
        ConfigError: no run or no records there, an unknown column, or files that are damaged or of
            another version.
    """
    return Record(run).rows(columns, steps=steps, where=where)


def open_records(run: Path | str, columns: Iterable[str] | None = None) -> Any:
    """The records of a run as a pyarrow.dataset with the documented columns and types.

    Args:
        run: the run's folder.
        columns: the files must have these columns; None = all but `OPTIONAL`. Others may be
            missing, and are null then.

    Raises:
        ConfigError: as `read_records`.
    """
    return Record(run).dataset(columns)


_AGAIN = ". If a copy was interrupted, copy it again; else delete the file"
"""What to do with a damaged file."""


@contextmanager
def sound(run: Path | str) -> Iterator[None]:
    """Turn errors of pyarrow in the block, which reads records or tables, into a ConfigError."""
    advice = ". A file is damaged, or of another kind" + _AGAIN
    what = f"the tables of {run} cannot be read"
    with reported(ConfigError, what, *DAMAGED, advice=advice):
        yield


def checked_rows(rows: Any, columns: Iterable[str]) -> Any:
    """Some columns of recorded tokens, with their documented types.

    Args:
        rows: a pyarrow table.
        columns: their names; those of `OPTIONAL` may be missing, and are null then.

    Raises:
        ConfigError: a column is missing or of another kind, a step is null, or an inclusion
            probability is not above 0 and at most 1.
    """
    _check_columns("the table", rows.schema, columns)
    cast: dict[str, Any] = {}
    for name in columns:
        column = rows[name] if name in rows.column_names else pyarrow.nulls(len(rows))
        wrong = f"'{name}' is no {COLUMNS[name].type}"
        with reported(ConfigError, wrong, pyarrow.ArrowException):
            cast[name] = column.cast(SCHEMA.field(name).type)
    for name, (most, expected) in _MOST.items():
        if name not in cast:
            continue
        good = pc.and_(pc.greater(cast[name], 0), pc.less_equal(cast[name], most))
        row = pc.index(pc.fill_null(good, False), False).as_py()
        if row >= 0:
            value = cast[name][row].as_py()
            raise ConfigError(f"'{name}' is {value} in row {row}, from 0; expected {expected}")
    return pyarrow.table(cast)


def checked_files(run: Path, kind: str, steps: Iterable[int] | None = None) -> dict[Path, Any]:
    """The files of RUN/records or RUN/tables with their schemas, the oldest step first.

    Args:
        run: the run's folder, a folder with such files in it, or one such file.
        kind: "records" or "tables".
        steps: only files that begin with these steps; None = all.

    Raises:
        ConfigError: no run or no such files there, or files that are damaged or of another version.
    """
    if there(run) and run.is_file():
        return {run: _checked_schema(run)}
    if not run.is_dir():
        raise ConfigError(f"{run} is not a run: there is no such folder")
    folder, files = run / kind, table_files(run, kind)
    if not files and not folder.is_dir():
        raise ConfigError(
            f"{run} has no folder {kind}; expected the folder of a run, or of Parquet files"
        )
    if not files:
        if kind == "records":
            raise ConfigError(f"{folder} is empty: ", why_no_rows(run))
        raise ConfigError(
            f"{folder} is empty: no step was recorded yet, or output.tables_every=0 was set"
        )
    if steps is not None:
        wanted = set(steps)
        present = {step_of(file) for file in files}
        if missing := sorted(wanted - present):
            others = ", ".join(map(str, sorted(present)))
            raise ConfigError(f"{files[0].parent} has no step {missing[0]}; it has {others}")
        files = [file for file in files if step_of(file) in wanted]
    return {file: _checked_schema(file) for file in files}


def why_no_rows(run: Path) -> Message:
    """Why the record of a run has no row, and what to type to record more, in a sentence."""
    from rlobj.runs.configuration import read_settings
    from rlobj.runs.metrics import read_metrics

    output = read_settings(run).get("output") if is_run(run) else None
    output = output if isinstance(output, Mapping) else {}
    if output.get("records_mb") == 0:
        switched_off = "output.records_mb=0 switched the record off. Use "
        return Message(switched_off, Setting("output.records_mb", 200), " to record")
    counts = [line["tokens/step"] for line in read_metrics(run) if line.get("tokens/step")]
    if not counts:
        return Message("no step was recorded yet, or output.records_mb=0 was set")
    share = output.get("records_share")
    return Message(
        f"of {sum(counts):,.0f} tokens in {counted(len(counts), 'step')} no rule touched one, and "
        f"output.records_share={'null' if share is None else share} chose none of the others; or "
        "they are not written yet. Use ",
        Setting("output.records_share", 0.1),
        " to record a tenth of them",
    )


def _checked_schema(file: Path) -> Any:
    """The schema of a file that is neither damaged nor of another version."""
    what = f"{file} is not a whole Parquet file"
    with reported(ConfigError, what, *DAMAGED, advice=_AGAIN):
        schema = read_schema(a_file(file))
    versions = {(schema.metadata or {}).get(VERSION_KEY.encode(), b"").decode(errors="replace")}
    if versions == {""}:  # another program has written it
        if "schema_version" not in schema.names:
            raise ConfigError(
                f"{file} was not written by rlobj: its metadata have no {VERSION_KEY}. Expected "
                f"it, or a column schema_version, with {SCHEMA_VERSION}"
            )
        column = read_parquet(file, columns=["schema_version"])["schema_version"]
        versions = {str(version).removesuffix(".0") for version in column.unique().to_pylist()}
    if versions - {str(SCHEMA_VERSION)}:
        raise ConfigError(
            f"{file} has schema version {', '.join(sorted(versions)) or 'unknown'}; this rlobj "
            f"reads version {SCHEMA_VERSION}: use the version of rlobj that wrote it"
        )
    return schema


def _check_columns(source: str, schema: Any, columns: Iterable[str]) -> None:
    """Refuse columns that are missing, or that hold neither null nor values of their kind."""
    for name in columns:
        if name not in schema.names:
            if name not in OPTIONAL:
                raise ConfigError(f"{source} has no column '{name}', which is read here")
        elif _kind(schema.field(name).type) not in (_kind(SCHEMA.field(name).type), "null"):
            raise ConfigError(
                f"{source} is no record: its column '{name}' is {schema.field(name).type}; "
                f"expected {COLUMNS[name].type}"
            )


def _kind(kind: Any) -> str:
    """What values of a type are, without their size: number, text, ..."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_integer(kind) or types.is_floating(kind):
        return "number"
    return "text" if "string" in str(kind) else str(kind)
