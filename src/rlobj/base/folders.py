"""Folders that one process writes to, and that no link leads out of."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlobj.base.errors import ConfigError, reported, warn


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
        lock = open(folder / ".lock", "a")  # noqa: SIM115
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not wait:
                raise ConfigError(f"another process is {doing} {folder}") from error
            warn("waiting for another process, which is %s %s", doing, folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def refuse_links(folder: Path) -> None:
    """Check that what is written and deleted in a folder is inside of it.

    Raises:
        ConfigError: a link in the folder leads out of it.
    """
    home = folder.resolve()
    for link in filter(Path.is_symlink, folder.rglob("*")):
        if not link.resolve().is_relative_to(home):
            raise ConfigError(f"{link} is a link out of {folder}, where files would be changed")
