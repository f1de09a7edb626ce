"""Read the rows of local data files."""

from __future__ import annotations

import csv
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

from rlobj.base.errors import DataError
from rlobj.base.files import a_file, read_whole
from rlobj.data.duplicates import DuplicateFilter
from rlobj.data.problems import Row

logger = logging.getLogger(__name__)
EXAMPLE = '{"problem": "2+2?", "answer": "4"}'
_MOST = 1 << 26
"""Characters of the longest line."""
_SPLITS = re.compile(r"(train|test|eval|validation|valid|val|dev)(ing|s|set|data|uation)?[0-9]*")
"""Words that name a split: the first group."""


def read_file(path: Path, duplicates: DuplicateFilter | None = None) -> Iterator[Row]:
    """Yield the rows of a file; its suffix decides the format.

    Args:
        path: a file with one of the suffixes in `SUFFIXES`.
        duplicates: drops duplicate rows of Parquet files.

    Raises:
        DataError: the path is a folder, the suffix is unknown, the text is not UTF-8, or a line
            cannot be read.
    """
    try:
        a_file(path)
    except OSError as error:
        if error.errno is None:
            raise DataError(f"{error}: {', '.join(SUFFIXES)}.") from None
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    if path.suffix not in SUFFIXES:
        raise DataError(
            f"{path}: unknown file type '{path.suffix}'; expected one of {', '.join(SUFFIXES)}."
        )
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path, duplicates)
        else:
            yield from SUFFIXES[path.suffix](path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from error


def split_files(folder: Path, split: str, *, fallback: bool) -> list[Path]:
    """Return the files of a split: those that name it, or whose folder does; see `split_of`.

    Args:
        folder: searched with its subfolders, but for names that begin with a dot; a file is
            returned as it is.
        split: train, test, ...
        fallback: return all files if no file names a split.

    Raises:
        DataError: the folder has no data file, or none of this split.
    """
    if not folder.is_dir():  # a file; `read_file` refuses a pipe or a device
        return [folder]
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in SUFFIXES and not path.is_dir()
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    wanted = split.lower()
    split_word = None if wanted[-1:].isdigit() else _SPLITS.fullmatch(wanted)
    split_by_file = {path: split_of(path.relative_to(folder)) for path in files}
    if split_word:
        chosen = [path for path in files if split_by_file[path] == split_word[1]]
    else:
        chosen = [path for path in files if wanted in _words(str(path.relative_to(folder)))]
    if not chosen and fallback and not any(split_by_file.values()):
        chosen = files
    if chosen:
        return chosen
    if not files:
        raise DataError(
            f"{folder}: no data file in this folder (looked for {', '.join(SUFFIXES)})."
        )
    names = ", ".join(str(path.relative_to(folder)) for path in files[:8])
    raise DataError(
        f"{folder}: no file with '{split}' and no other split in its name. The files are: {names}. "
        "Name one of them in data.source (or data.test)."
    )


def split_of(path: Path) -> str:
    """The split that a file names, else its innermost folder that names one; "" = there is none.

    A name with the words of two splits names none.

    Example:
        >>> [split_of(Path(path)) for path in ("train_test/testing.csv", "val/1.csv", "1.csv")]
        ['test', 'val', '']
    """
    for name in (path.stem, *reversed(path.parent.parts)):
        named = {match[1] for word in _words(name) if (match := _SPLITS.fullmatch(word))}
        if len(named) == 1:
            return named.pop()
    return ""


def _words(text: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", text.lower())


def local_copy(folder: Path | None, name: str) -> Path | None:
    """Return the file `name.jsonl`, `name.parquet`, ... or the subfolder `name`, or None.

    Case, hyphens and underscores are ignored: `MATH-500` matches math500. The exact name has
    priority, then the order of `SUFFIXES`; folders come last.
    """
    if folder is None:
        return None
    copies = [
        (stem != name, rank, path)
        for path in folder.iterdir()
        for rank, suffix in enumerate([*SUFFIXES, ""])
        if path.name.endswith(suffix) and path.is_dir() == (suffix == "")
        if letters_and_digits(stem := path.name.removesuffix(suffix)) == letters_and_digits(name)
    ]
    return min(copies)[2] if copies else None


def letters_and_digits(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: expected an object with columns, such as {EXAMPLE}; found "
            f"{type(value).__name__}."
        )
    return value


class _GivenTwice(ValueError):
    """An object of JSON has two values for one key, and a reader would take the last."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = repeated(key for key, _ in pairs)
        values = " and ".join(str(value)[:40] for key, value in pairs if key == twice)
        raise _GivenTwice(f"an object has the key '{twice}' more than once, with {values}")
    return mapping


def _exact_number(text: str) -> float | str:
    """A number with a fraction; its text, where a float would be another number."""
    number = float(text)
    exact = math.isinf(number) or Decimal(text) == Decimal(repr(number))
    return number if exact else text


def repeated(names: Iterable[str]) -> str | None:
    """The first name that stood there before; None = all are different."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(_lines(file, path), start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            row = _parsed(line, where, f"; expected one object per line, such as {EXAMPLE}")
            yield where, _object(row, where)


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """The lines of a file, none of which may fill the memory."""
    number = 0
    while line := file.readline(_MOST):
        number += 1
        if len(line) == _MOST:
            raise DataError(f"{path}:{number}: the line has more than {_MOST:,} characters.")
        yield line


def _parsed(text: str, where: str, expected: str = "") -> Any:
    """The value of a JSON text.

    Raises:
        DataError: it is no JSON; the message has the column that was being read.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_repeats, parse_float=_exact_number)
    except _GivenTwice as error:
        raise DataError(f"{where}: {error}.") from None
    except (ValueError, RecursionError) as error:  # numbers of 5,000 digits, 1,000 brackets
        reason, column = str(error), ""
        if isinstance(error, json.JSONDecodeError):
            names = re.findall(r'"([^"\\]+)"\s*:', text[: error.pos])
            column = f" in or after column '{names[-1]}'" if names else ""
            reason = f"{error.msg}, character {error.colno}"
        raise DataError(f"{where}: not JSON{column} ({reason}){expected}.") from None


def _json(path: Path) -> Iterator[Row]:
    """A list of objects, an object that contains one such list, or JSON lines."""
    text = read_whole(path, 1 << 32).decode("utf-8-sig")
    try:
        whole = json.loads(text, object_pairs_hook=_without_repeats, parse_float=_exact_number)
    except _GivenTwice as error:
        raise DataError(f"{path}: {error}.") from None
    except (ValueError, RecursionError) as error:
        if getattr(error, "msg", "") == "Extra data":
            yield from _json_lines(path)
            return
        whole = _parsed(text, f"{path}:{getattr(error, 'lineno', 1)}")
    if isinstance(whole, dict):
        lists = [value for value in whole.values() if isinstance(value, list)]
        whole = lists[0] if len(lists) == 1 else [whole]
    if not isinstance(whole, list):
        raise DataError(f"{path}: expected a list of objects, found {type(whole).__name__}.")
    for number, row in enumerate(whole, start=1):
        where = f"{path}, item {number}"
        yield where, _object(row, where)


def _separated(path: Path) -> Iterator[Row]:
    """CSV or TSV with a header line."""
    delimiter = "\t" if path.suffix == ".tsv" else ","
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(_lines(file, path), delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            if twice := repeated(filter(None, header)):
                raise DataError(f"{path}:1: the header has the column '{twice}' twice.")
            for fields in filter(None, reader):
                where = f"{path}:{reader.line_num}"
                if len(fields) != len(header):
                    raise DataError(
                        f"{where}: the row has {len(fields)} fields, and the header {len(header)}."
                    )
                yield where, dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: malformed CSV ({error}).") from None


def _parquet(path: Path, duplicates: DuplicateFilter | None = None) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        # With pre-buffering, the whole file would end up in memory.
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            yield from arrow_rows(str(path), file.iter_batches(batch_size=8192), duplicates)
    except (pyarrow.ArrowException, NotImplementedError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error}).") from error


def arrow_rows(
    name: str, batches: Iterable[Any], duplicates: DuplicateFilter | None = None
) -> Iterator[Row]:
    """Yield rows of Arrow record batches, numbered from 1, without duplicates."""
    start = 1
    for batch in batches:
        if twice := repeated(batch.schema.names):
            raise DataError(f"{name}: there are two columns with the name '{twice}'.")
        try:
            table = _with_exact_floats(batch)
            new = range(batch.num_rows) if duplicates is None else duplicates.new_rows(table)
            if len(new) == batch.num_rows:
                rows = table.to_pylist()
            else:
                rows = [table.slice(index, 1).to_pylist()[0] for index in new]
        except (ValueError, OverflowError) as error:  # half a character, two fields with one name
            where = f"{name}, rows {start} to {start + batch.num_rows - 1}"
            raise DataError(f"{where}: a value cannot be read ({error}).") from error
        for index, row in zip(new, rows, strict=True):
            yield f"{name}, row {start + index}", row
        start += batch.num_rows


def _with_exact_floats(batch: Any) -> Any:
    """The batch with float64 in place of float32: 0.1 as 0.1, and not as 0.10000000149011612."""
    import pyarrow

    def replaced(kind: Any, by: Any) -> Any:
        if kind == pyarrow.float32():
            return by
        if pyarrow.types.is_struct(kind):
            return pyarrow.struct([field.with_type(replaced(field.type, by)) for field in kind])
        if pyarrow.types.is_list(kind):
            return pyarrow.list_(kind.value_field.with_type(replaced(kind.value_type, by)))
        if pyarrow.types.is_fixed_size_list(kind):
            inner = kind.value_field.with_type(replaced(kind.value_type, by))
            return pyarrow.list_(inner, kind.list_size)
        if pyarrow.types.is_large_list(kind):
            return pyarrow.large_list(kind.value_field.with_type(replaced(kind.value_type, by)))
        return kind

    for place, field in enumerate(batch.schema):
        if (text := replaced(field.type, pyarrow.string())) != field.type:
            exact = replaced(field.type, pyarrow.float64())
            batch = batch.set_column(place, field.name, batch.column(place).cast(text).cast(exact))
    return batch


SUFFIXES = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": _separated,
    ".tsv": _separated,
}
"""File suffix -> function that reads the file."""
