"""Folders that one process writes to, and that no link leads out of."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlobj.base.errors import ConfigError, reported
from rlobj.base.files import kind_of

logger = logging.getLogger(__name__)


def _at_once(path: str, flags: int) -> int:
    """Open a file, or a pipe without waiting for its other end."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


@contextmanager
def lock_folder(folder: Path, doing: str, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from writing to a folder, which is made if it does not exist.

    Args:
        folder: the folder.
        doing: what the other process does, for the error: "training in".
        wait: wait for the other process instead of an error.

    Raises:
        ConfigError: another process has the lock, or the folder cannot be written.
    """
    with reported(ConfigError, f"cannot write to {folder}", OSError):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a", opener=_at_once)  # noqa: SIM115
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not wait:
                raise ConfigError(f"another process is {doing} {folder}") from error
            logger.warning("waiting for another process, which is %s %s", doing, folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process has the lock of a folder."""
    try:
        with open(folder / ".lock", "rb", opener=_at_once) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock, or the file system has none
        return False
    return False


def refuse_others(folder: Path) -> None:
    """Check that a folder has only files and folders, also behind links.

    Raises:
        ConfigError: there is a pipe, socket or device.
    """
    for path in folder.rglob("*"):
        if path.exists() and (kind := kind_of(path)) not in ("a file", "a folder"):
            raise ConfigError(f"{path} is {kind}; expected a file")


def refuse_links(folder: Path) -> None:
    """Check that what is written and deleted in a folder is inside of it: files and folders only.

    Raises:
        ConfigError: as `refuse_others`, or a link in the folder leads out of it.
    """
    refuse_others(folder)
    home = folder.resolve()
    for link in filter(Path.is_symlink, folder.rglob("*")):
        if not link.resolve().is_relative_to(home):
            raise ConfigError(
                f"{link} is a link to {link.readlink()}, and files there would be changed or "
                f"deleted. Expected no links out of {folder}. Replace the link by what it leads to"
            )
