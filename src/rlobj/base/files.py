"""Files that are read and written whole, or not at all."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from rlobj.base.errors import DataError, RunError

_Line = TypeVar("_Line")


def packaged(package: str, name: str) -> str:
    """The text of a file inside rlobj, such as a style sheet in `assets`."""
    return (files(package) / name).read_text(encoding="utf-8")


def parse_json(text: bytes | str) -> Any:
    """JSON as Python objects; ValueError also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has all bytes; if that fails, the old one stays.

    Args:
        path: the file.
        content: its bytes.

    Raises:
        RunError: the disk refused.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:  # also Ctrl-C
        with suppress(OSError):  # on a read-only disk, or below a file
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RunError(f"cannot write {path}: {error}") from error
        raise


def append_whole(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Add bytes to the end of a file, all or none; `sync` waits until the disk has them.

    Raises:
        OSError: the disk refused.
    """
    with path.open("ab", 0) as file:
        before = file.tell()
        if file.write(content) < len(content):
            file.truncate(before)
            raise OSError("the disk is full")
        if sync:
            os.fsync(file.fileno())


def json_lines(path: Path, read: Callable[[Any], _Line]) -> Iterator[tuple[int, _Line]]:
    """The lines of a file of JSON, without one that a kill cut off at the end; none without a file.

    Args:
        path: the file.
        read: the value of a line -> what is yielded of it.

    Yields:
        Bytes up to the end of a line, and what `read` returned.

    Raises:
        DataError: a line is damaged.
        OSError: the file cannot be read.
    """
    if not path.exists():
        return
    end = 0
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n"):
                return
            end += len(text)
            try:
                line = read(parse_json(text.decode("utf-8", "surrogatepass")))
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise DataError(f"{path}:{number}: damaged, or not JSON ({error!r})") from error
            yield end, line


def last_lines(log: Path) -> list[str]:
    """The lines at the end of a log, of its last million bytes."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 1_000_000))
        return file.read().decode(errors="replace").rstrip().splitlines()


def link(source: str, target: str) -> None:
    """Link a file that never changes, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def remove(path: Path) -> None:
    """Delete a file or folder if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def settle(temporary: Path, final: Path) -> None:
    """Rename a folder to its final name when the disk has all of its bytes."""
    for file in [temporary, *temporary.rglob("*")]:
        _sync_one(file)
    if final.is_dir():
        shutil.rmtree(final)
    os.replace(temporary, final)
    _sync_one(final.parent)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
