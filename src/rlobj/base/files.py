"""Files that are read and written whole, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlobj.base.errors import RunError

WHOLE = 1 << 26
"""The largest file in bytes that is read at once, unless its reader says another number."""
_KINDS = {"-": "a file", "d": "a folder", "p": "a pipe", "s": "a socket"}


def packaged(package: str, name: str) -> str:
    """The text of a file inside rlobj, such as a style sheet in `assets`."""
    return (files(package) / name).read_text(encoding="utf-8")


def a_file(path: Path) -> Path:
    """The path of a file to read: a pipe would wait for ever, and a device never ends.

    Raises:
        OSError: there is no file, or something else than a file.
    """
    if (kind := kind_of(path)) != "a file":
        raise OSError(f"{path} is {kind}; expected a file")
    return path


def kind_of(path: Path) -> str:
    """What a path leads to: a file, a folder, a pipe, a socket or a device."""
    return _KINDS.get(stat.filemode(path.stat().st_mode)[0], "a device")


def read_whole(path: Path, most: int = WHOLE) -> bytes:
    """The bytes of a file.

    Raises:
        OSError: as `a_file`, or it has more bytes than `most`.
    """
    with a_file(path).open("rb") as file:
        if len(content := file.read(most + 1)) > most:
            raise OSError(f"{path} has more than {most:,} bytes")
    return content


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


def lines_of(path: Path, most: int = WHOLE, start: int = 0) -> Iterator[bytes]:
    """The lines of a file from a byte on, each of at most `most` bytes; OSError as `a_file`."""
    with a_file(path).open("rb") as file:
        file.seek(start)
        yield from iter(lambda: file.readline(most), b"")


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
