"""Read the rows of local data files.

JSON and CSV are read by Python and not by Arrow, which would give all rows the same keys and one
type, and make dates of texts.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlobj.base.errors import DataError, reported
from rlobj.data.problems import Row

EXAMPLE = '{"problem": "2+2?", "answer": "4"}'
_SPLITS = re.compile(r"(train|test|eval|validation|valid|val|dev)(ing|s|set|data|uation)?[0-9]*")
"""Words that name a split: the first group."""


def read_file(path: Path) -> Iterator[Row]:
    """Yield the rows of a file; its suffix decides the format.

    Args:
        path: a file with one of the suffixes in `SUFFIXES`.

    Raises:
        DataError: the suffix is unknown, the text is not UTF-8, or a line cannot be read.
    """
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: unknown file type; expected one of {', '.join(SUFFIXES)}")
    with reported(DataError, f"{path} cannot be read", UnicodeDecodeError, OSError):
        yield from SUFFIXES[path.suffix](path)


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
    split_by_file = {path: split_of(path.relative_to(folder)) for path in files}
    split_word = None if split[-1:].isdigit() else _SPLITS.fullmatch(split.lower())
    if split_word:
        chosen = [path for path in files if split_by_file[path] == split_word[1]]
    else:
        chosen = [path for path in files if split.lower() in _words(str(path.relative_to(folder)))]
    if not chosen and fallback and not any(split_by_file.values()):
        chosen = files
    if not chosen:
        names = ", ".join(str(path.relative_to(folder)) for path in files[:8])
        raise DataError(f"{folder}: no file with '{split}' in its name. It has: {names or 'none'}")
    return chosen


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


def local_copy(folder: Path, name: str) -> Path | None:
    """Return the file `name.jsonl`, `name.parquet`, ... or the subfolder `name`, or None.

    Case, hyphens and underscores are ignored: `MATH-500` matches math500. The first of `SUFFIXES`
    counts; folders come last.
    """
    copies = [
        path
        for suffix in [*SUFFIXES, ""]
        for path in sorted(folder.iterdir())
        if path.name.endswith(suffix) and path.is_dir() == (suffix == "")
        if letters_and_digits(path.name.removesuffix(suffix)) == letters_and_digits(name)
    ]
    return copies[0] if copies else None


def letters_and_digits(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of 5,000 digits, 1,000 brackets
        raise DataError(f"{where}: not JSON ({error}); expected for example {EXAMPLE}") from error


def _object(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object with columns, such as {EXAMPLE}")
    return where, value


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _object(_parsed(line, f"{path}:{number}"), f"{path}:{number}")


def _json(path: Path) -> Iterator[Row]:
    """A list of objects, or JSON lines."""
    text = path.read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("["):
        expected = "expected a list of rows, [{...}, {...}], or one row in each line"
        with reported(DataError, expected, DataError):
            yield from _json_lines(path)
        return
    for number, row in enumerate(_parsed(text, str(path)), start=1):
        yield _object(row, f"{path}, item {number}")


def _separated(path: Path) -> Iterator[Row]:
    """CSV or TSV with a header line."""
    delimiter = "\t" if path.suffix == ".tsv" else ","
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            for other in ";,\t|" if len(header) == 1 else "":
                if other in header[0].replace(delimiter, ""):
                    raise ValueError(f"the columns are separated by {other!r}, not {delimiter!r}")
            for fields in filter(None, reader):
                yield f"{path}:{reader.line_num}", dict(zip(header, fields, strict=True))
        except (csv.Error, ValueError) as error:  # of a quote that is not closed, or of `zip`
            raise DataError(f"{path}:{reader.line_num}: malformed CSV ({error}).") from error


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    what = f"{path} is not a readable Parquet file"
    with (
        reported(DataError, what, pyarrow.ArrowException, NotImplementedError),
        # With pre-buffering, the whole file would end up in memory.
        parquet.ParquetFile(path, pre_buffer=False) as file,
    ):
        yield from arrow_rows(str(path), file.iter_batches(batch_size=8192))


def arrow_rows(name: str, batches: Iterable[Any]) -> Iterator[Row]:
    """Yield rows of Arrow record batches, numbered from 1."""
    start = 1
    for batch in batches:
        where = f"{name}, rows {start} to {start + batch.num_rows - 1}: a value cannot be read"
        with reported(DataError, where, ValueError, OverflowError):  # half a character, a late date
            rows = batch.to_pylist()
        kinds = {field.name: field.type for field in batch.schema if "float" in str(field.type)}
        for number, row in enumerate(rows, start):
            exact = {column: _exact_float(row[column], kind) for column, kind in kinds.items()}
            yield f"{name}, row {number}", {**row, **exact}
        start += batch.num_rows


def _exact_float(value: Any, kind: Any) -> Any:
    """A value with each float32 as it is written: 0.1, and not 0.10000000149011612."""
    import numpy

    if isinstance(value, float) and str(kind) == "float":
        return float(str(numpy.float32(value)))
    if isinstance(value, list) and hasattr(kind, "value_type"):
        return [_exact_float(item, kind.value_type) for item in value]
    if isinstance(value, dict):
        return {field.name: _exact_float(value[field.name], field.type) for field in kind}
    return value


SUFFIXES = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": _separated,
    ".tsv": _separated,
}
"""File suffix -> function that reads the file."""
