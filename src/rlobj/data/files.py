"""Read the rows of local data files.

Read rows of published data sets: local copies, else the Hugging Face hub.

One request first tests whether the hub can be reached, because the packages that read it repeat
every request for half a minute before they fail. If it cannot be reached, the local cache is used.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

from rlobj.base.errors import Argument, DataError, Message, MissingExtra, Setting, nearest
from rlobj.base.files import a_file, path_of, read_whole
from rlobj.data.layouts import DuplicateFilter
from rlobj.data.problems import Row

logger = logging.getLogger(__name__)


EXAMPLE = '{"problem": "2+2?", "answer": "4"}'
_MOST = 1 << 26
"""Characters of the longest line."""
SPLIT_WORDS = {"train", "training", "test", "eval", "validation", "valid", "val", "dev"}
"""Words in file names that name a split."""


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
    """Return the files of a split: those with its name as a word of their path in the folder.

    Args:
        folder: searched with its subfolders; a file is returned as it is.
        split: train, test, ...
        fallback: return all files if no file names a split.

    Raises:
        DataError: the folder has no data file, or none of this split.
    """
    if not folder.is_dir():  # a file; `read_file` refuses a pipe or a device
        return [folder]
    found = (path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    files = sorted(path for path in found if not path.is_dir())
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
        f"{folder}: no file with '{split}' in its name. The files are: {names}. Name one of "
        "them in data.source (or data.test)."
    )


def local_copy(folder: Path | None, name: str) -> Path | None:
    """Return the file `name.jsonl`, `name.parquet`, ... or the subfolder `name`, or None.

    Case, hyphens and underscores are ignored: `MATH-500` matches math500. The exact name has
    priority, then the order of `SUFFIXES`; folders come last.
    """
    if folder is None:
        return None
    found = [
        (stem != name, rank, path)
        for path in folder.iterdir()
        for rank, suffix in enumerate([*SUFFIXES, ""])
        if path.name.endswith(suffix) and path.is_dir() == (suffix == "")
        if letters_and_digits(stem := path.name.removesuffix(suffix)) == letters_and_digits(name)
    ]
    return min(found)[2] if found else None


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
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = repeated(key for key, _ in pairs)
        values = " and ".join(str(value)[:40] for key, value in pairs if key == twice)
        raise _GivenTwice(f"an object has the key '{twice}' more than once, with {values}")
    return found


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
            return pyarrow.struct([each.with_type(replaced(each.type, by)) for each in kind])
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


ADVICE = "HF_ENDPOINT=URL in the environment sets a mirror; HF_HUB_OFFLINE=1 reads only the cache."


@dataclass(frozen=True)
class HubSource:
    """A data set on the hub.

    Attributes:
        id: `owner/name`.
        split: one split; None = all of them, by name.
        config: the configuration to read; None = the only one.
    """

    id: str
    split: str | None = "train"
    config: str | None = None

    def __str__(self) -> str:
        split = "" if self.split is None else f"[{self.split}]"
        return f"{self.id}{f'/{self.config}' if self.config else ''}{split}"


def published_rows(
    name: str,
    candidates: Sequence[HubSource],
    split: str,
    *,
    fallback: bool,
    duplicates: DuplicateFilter | None = None,
    data_dir: Path | None = None,
) -> tuple[str, Iterator[Row]]:
    """Return where a published data set is read from, and the rows of a split.

    Args:
        name: its name; the name of a copy.
        candidates: the data sets on the hub that have this split, in the order in which they are
            tried.
        split: train or test.
        fallback: use all of a copy if its file names do not name a split.
        duplicates: drops duplicate rows.
        data_dir: the folder that has a copy. Default: the folder in the environment variable
            RLOBJ_DATA_DIR, if it has one, and then the hub.

    Raises:
        MissingExtra: there is no copy, and `datasets` is not installed.
        DataError: there is no such folder, file or split, or it cannot be loaded.
    """
    variable = os.environ.get("RLOBJ_DATA_DIR")
    folder = data_dir or (Path(variable) if variable else None)
    if folder is not None:
        folder = path_of(folder)
        if not folder.is_dir():
            own = Argument("data_dir", folder) if data_dir else f"RLOBJ_DATA_DIR={variable}"
            raise DataError(own, ": there is no such folder.")
        copy = local_copy(folder, name)
        if copy is not None and (copy.is_dir() or fallback):
            files = split_files(copy, split, fallback=fallback)
            return str(copy), (row for file in files for row in read_file(file, duplicates))
    form = (
        f"{name}.jsonl (or .parquet, .json, .csv) with the columns problem and answer, or a folder "
        f"{name}/ with files named train and test"
    )
    if data_dir is not None:
        there = [p.name for p in data_dir.iterdir() if p.is_dir() or p.suffix in SUFFIXES]
        known = nearest(f"{name}.jsonl", there) if there else " The folder has no data files."
        raise DataError(f"{folder} has no {form}.{known}")
    if not candidates:
        raise DataError(
            f"{name} has no split '{split}'. Use ",
            Setting("data.test", "FILE"),
            ", or hold out a share of it: ",
            Setting("data.test_fraction", 0.1),
        )
    instead = Message(
        "Without the hub: ",
        Argument("data_dir", "DIR"),
        f", or RLOBJ_DATA_DIR=DIR, a folder with {form}.",
    )
    source, part = first_available(candidates, name, instead)
    return str(source), _rows(str(source), part, duplicates)


def first_available(
    candidates: Sequence[HubSource], name: str, instead: str
) -> tuple[HubSource, Any]:
    """Return the first candidate that can be loaded, and what `datasets` gives for it.

    If the hub cannot be reached, only the local cache is used.

    Args:
        candidates: data sets, in the order in which they are tried.
        name: name of the data set, for error messages.
        instead: a sentence that says what to give if no candidate can be loaded.

    Raises:
        MissingExtra: `datasets` is not installed.
        DataError: no candidate can be loaded; the message has the reason for each.
    """
    try:
        import datasets.config
    except ImportError:
        raise MissingExtra("datasets", "hub", f"Loading {name} from the hub", instead) from None
    unreachable, failures = _unreachable(datasets, *(source.id for source in candidates)), []
    lost, before = bool(unreachable), datasets.config.HF_HUB_OFFLINE
    try:
        for source in candidates:
            datasets.config.HF_HUB_OFFLINE = before or lost
            try:
                part = datasets.load_dataset(source.id, source.config, split=source.split)
            except Exception as error:
                text = f"{type(error).__name__}: {' '.join(str(error).split())}"
                failures.append(f"  {source}: {'not in the local cache' if lost else text[:200]}")
                lost = lost or isinstance(error, ConnectionError)
            else:
                if unreachable:
                    logger.warning("%s: %s comes from the local cache", unreachable, source)
                return source, part
    finally:
        datasets.config.HF_HUB_OFFLINE = before
    why = f"Could not load {name} from the Hugging Face hub: {unreachable}".rstrip()
    lines = [why, *failures, *([ADVICE] if unreachable else []), instead]
    raise DataError(Message.joined("\n", lines))


def hub_rows(
    identifier: str,
    name: str | None,
    split: str,
    *,
    fallback: bool,
    duplicates: DuplicateFilter | None = None,
) -> Iterator[Row]:
    """Yield the rows of one split of a data set on the hub, or of a local copy.

    Args:
        identifier: `owner/name`, or the folder of a copy.
        name: configuration of the data set; None = the only one.
        split: name of the split.
        fallback: if the data set has a single split, use it whatever its name is.
        duplicates: drops duplicate rows.

    Raises:
        MissingExtra: `datasets` is not installed.
        DataError: the data set cannot be loaded, or has no such split.
    """
    stem = identifier.rpartition("/")[2]
    instead = (
        "Without the hub, give a local copy: the folder of the data set, or a file such as "
        f"{stem}.jsonl, {stem}.parquet or {stem}.csv with the columns problem and answer."
    )
    _, parts = first_available([HubSource(identifier, None, name)], f"'{identifier}'", instead)
    if split not in parts:
        if not (fallback and len(parts) == 1):
            raise DataError(
                f"'{identifier}' has no split '{split}'. It has: {', '.join(parts)}. Change "
                "data.split, data.test or data.test_fraction."
            )
        (split,) = parts
    yield from _rows(f"{identifier}[{split}]", parts[split], duplicates)


def _rows(name: str, part: Any, duplicates: DuplicateFilter | None) -> Iterator[Row]:
    tables = part.with_format("arrow").iter(batch_size=8192)
    return arrow_rows(name, (batch for table in tables for batch in table.to_batches()), duplicates)


def _unreachable(datasets: Any, *identifiers: str) -> str:
    """Return why the hub cannot be reached; empty if it can be, or is not needed.

    Any response counts. The timeout is `HF_HUB_ETAG_TIMEOUT`, 10 seconds by default.
    """
    if datasets.config.HF_HUB_OFFLINE or all(Path(name).exists() for name in identifiers):
        return ""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # the type depends on the HTTP package
        return f"{constants.ENDPOINT} cannot be reached ({' '.join(str(error).split())[:200]})"
    return ""
