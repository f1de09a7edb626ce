"""Rows of local data files. A row is `(where, columns)`; `where` names it in errors."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlobj.base.errors import DataError

if TYPE_CHECKING:
    from rlobj.data.repeats import Repeats

__all__ = ["SUFFIXES", "Row", "arrow_rows", "folded", "named_source", "read_file", "split_files"]

Row = tuple[str, dict[str, Any]]

SPLIT_WORDS = {"train", "training", "test", "eval", "validation", "valid", "val", "dev"}
"""Words of a file name that say which part of a data set it holds."""


def read_file(path: Path, repeats: Repeats | None = None) -> Iterator[Row]:
    """Rows of one file, by its suffix.

    Args:
        path: the file.
        repeats: drops rows of Parquet files that repeat an earlier one.

    Raises:
        DataError: a folder, an unknown suffix, text that is not UTF-8, an unreadable line.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a file: {', '.join(SUFFIXES)}.")
    if path.suffix not in SUFFIXES:
        raise DataError(
            f"{path}: unknown file type '{path.suffix}'; expected one of {', '.join(SUFFIXES)}."
        )
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path, repeats)
        else:
            yield from SUFFIXES[path.suffix](path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from error


def split_files(folder: Path, split: str, *, fallback: bool) -> list[Path]:
    """The files of one split: those with its name as a word of their path inside the folder.

    With `fallback`, a folder whose files name no split at all gives all of them.

    Raises:
        DataError: no data files, or none of this split.
    """
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    words = {
        path: set(re.split(r"[^a-z0-9]+", str(path.relative_to(folder)).lower())) for path in files
    }
    chosen = [path for path in files if split.lower() in words[path]]
    if not chosen and fallback and not any(words[path] & SPLIT_WORDS for path in files):
        chosen = files
    if chosen:
        return chosen
    if not files:
        raise DataError(
            f"{folder}: no data file in this folder (looked for {', '.join(SUFFIXES)})."
        )
    names = ", ".join(str(path.relative_to(folder)) for path in files[:8])
    raise DataError(
        f"{folder}: no file with '{split}' in its name. The files are: {names}. Set data.source "
        "(or data.test) to one of them."
    )


def named_source(folder: Path, name: str) -> Path | None:
    """The file `name.jsonl`, `name.parquet`, ... or the folder `name` in a folder, or None.

    Case, hyphens and underscores do not matter: `MATH-500` may hold math500. The exact name comes
    first, then the order of `SUFFIXES`, folders last.
    """
    order = [*SUFFIXES, ""]
    found = []
    for path in sorted(folder.iterdir()):
        suffix = "" if path.is_dir() else path.suffix
        stem = path.name.removesuffix(suffix)
        if suffix in order and folded(stem) == folded(name) and (suffix or path.is_dir()):
            found.append((stem != name, order.index(suffix), path))
    return min(found)[2] if found else None


def folded(name: str) -> str:
    """The letters and digits of a name, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _json_row(text: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON ({error.msg}, column {error.colno}); expected one object per line."
        ) from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object, found {type(row).__name__}.")
    return row


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path}:{number}"
                yield where, _json_row(line, where)


def _json(path: Path) -> Iterator[Row]:
    """A list of objects, an object that holds one such list, or JSON lines under this suffix."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            yield from _json_lines(path)
            return
        raise DataError(
            f"{path}:{error.lineno}: not JSON ({error.msg}, column {error.colno})."
        ) from None
    if isinstance(whole, dict):
        lists = [value for value in whole.values() if isinstance(value, list)]
        whole = lists[0] if len(lists) == 1 else [whole]
    if not isinstance(whole, list):
        raise DataError(f"{path}: expected a list of objects, found {type(whole).__name__}.")
    for number, row in enumerate(whole, start=1):
        where = f"{path}, item {number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object, found {type(row).__name__}.")
        yield where, row


def _separated(path: Path) -> Iterator[Row]:
    """CSV, or TSV by its suffix, with a header line."""
    delimiter = "\t" if path.suffix == ".tsv" else ","
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            for fields in reader:
                if not fields:
                    continue
                where = f"{path}:{reader.line_num}"
                if len(fields) != len(header):
                    raise DataError(
                        f"{where}: the row has {len(fields)} fields, and the header {len(header)}."
                    )
                yield where, dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: malformed CSV ({error}).") from None


def _parquet(path: Path, repeats: Repeats | None = None) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        # Buffering ahead would hold the whole file in memory by its end.
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            yield from arrow_rows(str(path), file.iter_batches(batch_size=8192), repeats)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path}: not a readable Parquet file ({error}).") from error


def arrow_rows(name: str, batches: Iterable[Any], repeats: Repeats | None = None) -> Iterator[Row]:
    """Rows of Arrow record batches, counted from 1; without those that `repeats` drops."""
    start = 1
    for batch in batches:
        new = range(batch.num_rows) if repeats is None else repeats.fresh(batch)
        if len(new) == batch.num_rows:
            rows = batch.to_pylist()
        else:
            rows = [batch.slice(index, 1).to_pylist()[0] for index in new]
        for index, row in zip(new, rows, strict=True):
            yield f"{name}, row {start + index}", row
        start += batch.num_rows


SUFFIXES = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": _separated,
    ".tsv": _separated,
}
"""Readers by file suffix."""
