"""The starts of a run, what was changed at them, and the error that ended it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, reported, warn_once
from rlobj.base.files import parse_json, read_whole
from rlobj.runs.layout import SESSIONS_FILE, STOP_FILE

REWARD_FILE, OBJECTIVE_FILE = "the file of a reward", "the file of an objective"
TRAINING_PROBLEMS, HELD_OUT_PROBLEMS = "the training problems", "the held-out problems"
"""The names of changes that are no settings: somebody edited these."""
FORMAT = 4
"""Of the files of a run, in sessions.jsonl. A change that makes older runs unreadable adds 1."""


def read_stop(path: Path) -> tuple[int, str, str] | None:
    """Step, finding ("" = none) and message of the error that ended a run; None without one."""
    try:
        stop = parse_json(read_whole(path / STOP_FILE))
        return int(stop["step"]), str(stop["finding"] or ""), str(stop["message"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:  # of step 1e999
        warn_once(f"{path / STOP_FILE} cannot be read: {error!r}")
        return None


def read_sessions(path: Path) -> list[dict[str, Any]]:
    """The starts of a run, oldest first; a warning names each damaged line, which is left out.

    Raises:
        ConfigError: the file cannot be read.
    """
    file, sessions = path / SESSIONS_FILE, []
    with reported(ConfigError, f"cannot read {file}", OSError):
        lines = read_whole(file).splitlines() if file.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            session = parse_json(line)
            if type(session["step"]) is not int:
                raise TypeError
            sessions.append(session)
        except (ValueError, TypeError, KeyError):
            warn_once(f"{path}: {SESSIONS_FILE}: line {number} cannot be read and is left out")
    return sessions


def read_changes(path: Path) -> list[tuple[int, str, Any, Any]]:
    """What was changed when a run was resumed: (step, setting, before, now).

    Changes after a step that a later start went back to are left out: they were made again, or not.
    """
    changes: list[tuple[int, str, Any, Any]] = []
    for session in read_sessions(path):
        step, changed = session["step"], session.get("changed", {})
        changes = [change for change in changes if change[0] < step]
        with suppress(ValueError, TypeError, AttributeError):  # no run has written it
            changes += [(step, name, before, now) for name, (before, now) in changed.items()]
    return changes
