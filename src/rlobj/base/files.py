"""Files that appear whole or not at all, and folders that one process writes to.

Network ports of this machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, RunError, reported

WHOLE = 1 << 26
"""The largest file in bytes that is read at once, unless its reader says another number."""
_PIECE = 1 << 20
_KINDS = {"d": "a folder", "p": "a pipe", "s": "a socket"}


def packaged(package: str, name: str) -> str:
    """The text of a file inside rlobj, such as a style sheet in `assets`."""
    return (files(package) / name).read_text(encoding="utf-8")


def path_of(name: str | Path) -> Path:
    """The path that a person wrote, with `~` as a home; nothing needs to be there.

    Raises:
        ConfigError: nobody has the home, or as `there`.
    """
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # Python names no user in it
        text = f"{_short(name)}: there is no such user; ~/ is your own home"
        raise ConfigError(text) from None
    there(path)
    return path


def there(path: Path) -> bool:
    """Whether a path leads to something.

    Raises:
        ConfigError: it can lead to nothing, because it is too long or has a character that no path
            has; or it may not be read.
    """
    try:
        os.fsencode(path)
        if "\0" in str(path):
            raise ValueError("no path has the character NUL")
        return path.exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{_short(path)} cannot be a path: {reason}") from None


def _short(name: str | Path) -> str:
    text = ascii(str(name))
    return text if len(text) <= 100 else f"{text[:100]}... ({len(text):,} characters)"


def a_file(path: Path) -> Path:
    """The path of a file to read: a pipe would wait for ever, and a device never ends.

    Raises:
        OSError: there is no file, or something else than a file.
    """
    if (kind := stat.filemode(path.stat().st_mode)[0]) != "-":
        raise OSError(f"{path} is {_KINDS.get(kind, 'a device')}; expected a file")
    return path


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


def _at_once(path: str, flags: int) -> int:
    """Open a file, or a pipe without waiting for its other end."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


@contextmanager
def lock_folder(folder: Path, doing: str) -> Iterator[None]:
    """Keep other processes from writing to a folder, which is made if it does not exist.

    Args:
        folder: the folder.
        doing: what the other process does, for the error: "training in".

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
            raise ConfigError(f"another process is {doing} {folder}") from error
        yield


def refuse_others(folder: Path) -> None:
    """Check that a folder has only files and folders, also behind links.

    Raises:
        ConfigError: there is a pipe, socket or device.
    """
    for found in folder.rglob("*"):
        kind = stat.filemode(found.stat().st_mode)[0] if found.exists() else "-"
        if kind not in "-d":
            raise ConfigError(f"{found} is {_KINDS.get(kind, 'a device')}; expected a file")


def refuse_links(folder: Path) -> None:
    """Check that what is written and deleted in a folder is inside of it: files and folders only.

    Raises:
        ConfigError: as `refuse_others`, or a link in the folder leads out of it.
    """
    refuse_others(folder)
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
        with open(folder / ".lock", "rb", opener=_at_once) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock, or the file system has none
        return False
    return False


def located(name: str, home: Path) -> str:
    """The absolute path of a file or folder, seen from `home`; any other name as it is."""
    path = home / name
    return str(path) if name and there(path) else name


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


def link(source: str, target: str) -> None:
    """Link a file that never changes, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def step_name(step: int) -> str:
    """Return the name of a step's files and folders."""
    return f"step-{step:06d}"


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


def free_port(address: str = "127.0.0.1") -> int:
    """A port that is not in use now.

    Args:
        address: the address to check; "" = all addresses of this machine.
    """
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


MODEL_FILES = (".json", ".safetensors", ".bin", ".jinja")
"""The files of a model that its digest is of."""


def model_digest(
    folder: Path, suffixes: Sequence[str] = MODEL_FILES, pieces: int = 1024
) -> str | None:
    """`files_digest` of the files of a model; None = there is no folder."""
    if not folder.is_dir():
        return None
    files = [each for each in folder.iterdir() if each.suffix in suffixes and each.is_file()]
    return files_digest(sorted(files), pieces)


def files_digest(files: Sequence[Path], pieces: int = 1024) -> str:
    """16 hexadecimal digits of a hash of the names, sizes and bytes of files.

    Args:
        files: in the order that counts.
        pieces: of a file of more MiB than this, about so many pieces of 1 MiB are read.
    """
    found = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        found.update(f"{file.name}:{size};".encode())
        step = max(_PIECE, size // pieces)
        with file.open("rb") as content:
            for start in range(0, size, step):
                content.seek(start)
                found.update(content.read(_PIECE))
    return found.hexdigest()[:16]
