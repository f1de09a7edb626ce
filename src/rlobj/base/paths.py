"""Paths that people write, and the names of files and folders of a run."""

import os
import re
from pathlib import Path

from rlobj.base.errors import ConfigError, reported


def path_of(name: str | Path) -> Path:
    """The path that a person wrote, with `~` as a home; nothing needs to be there.

    Raises:
        ConfigError: as `there`.
    """
    path = Path(os.path.expanduser(name))
    there(path)
    return path


def there(path: Path) -> bool:
    """Whether a path leads to something.

    Raises:
        ConfigError: it is too long, or may not be read.
    """
    with reported(ConfigError, "no such path", OSError):
        return path.exists()


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


def step_name(step: int) -> str:
    """Return the name of a step's files and folders."""
    return f"step-{step:06d}"


def step_of(path: Path) -> int:
    """The step in the name of a file or folder such as `step-000010`; -1 if there is none."""
    match = re.match(r"step-(\d+)", path.name)
    return int(match[1]) if match else -1
