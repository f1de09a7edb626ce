"""Files that appear whole or not at all, and folders that one process writes to."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from rlobj.base.errors import ConfigError, RunError


def packaged(package: str, name: str) -> str:
    """The text of a file inside rlobj, such as a style sheet in `assets`."""
    return (files(package) / name).read_text(encoding="utf-8")


def write_whole(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file; if that fails, the old one stays.

    Args:
        path: the file.
        content: its bytes.
        durable: wait until the disk has all bytes, which protects against power failures.

    Raises:
        RunError: the disk refused.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:  # also Ctrl-C
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RunError(f"cannot write {path}: {error}") from error
        raise


@contextmanager
def lock_folder(folder: Path, doing: str) -> Iterator[None]:
    """Keep other processes from writing to a folder, which is made if it does not exist.

    Args:
        folder: the folder.
        doing: what the other process does, for the error: "training in".

    Raises:
        ConfigError: another process has the lock, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another process is {doing} {folder}") from error
        yield


def refuse_links(folder: Path) -> None:
    """Check that what is written and deleted in a folder is inside of it.

    Raises:
        ConfigError: a link in the folder leads out of it.
    """
    home = folder.resolve()
    for found in filter(Path.is_symlink, folder.rglob("*")):
        if not found.resolve().is_relative_to(home):
            raise ConfigError(
                f"{found} is a link to {found.readlink()}, and files there would be changed or "
                f"deleted. Expected no links out of {folder}. Replace the link by what it leads to"
            )


def is_locked(folder: Path) -> bool:
    """Whether a process has the lock of a folder."""
    try:
        with (folder / ".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock, or the file system has none
        return False
    return False


def located(name: str, home: Path) -> str:
    """The absolute path of a file or folder, seen from `home`; any other name as it is."""
    path = home / name
    return str(path) if name and path.exists() else name


def located_target(target: str, home: Path) -> str:
    """`path/to/file.py:name` with the absolute path of the file."""
    file, colon, name = target.rpartition(":")
    return f"{located(file, home)}{colon}{name}"


def nearby(path: Path) -> Path:
    """The path as it is shown: seen from the current folder, if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def file_name(text: str) -> str:
    """A text as the name of a file: each other character than letters, digits and +.-_ is a -."""
    return re.sub(r"[^\w+.-]", "-", text.strip("./~"))


def last_lines(log: Path) -> list[str]:
    """The lines at the end of a log, of its last million bytes."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 1_000_000))
        return file.read().decode(errors="replace").rstrip().splitlines()


def step_of(path: Path) -> int:
    """The step in the name of a file or folder such as `step-000010`; -1 if there is none."""
    match = re.match(r"step-(\d+)", path.name)
    return int(match[1]) if match else -1
