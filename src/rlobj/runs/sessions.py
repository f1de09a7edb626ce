"""The starts of a run, what was changed at them, and the error that ended it."""

from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, reported
from rlobj.base.files import json_lines, parse_json
from rlobj.runs.layout import SESSIONS_FILE, STOP_FILE

REWARD_FILE, OBJECTIVE_FILE = "the file of a reward", "the file of an objective"
TRAINING_PROBLEMS, HELD_OUT_PROBLEMS = "the training problems", "the held-out problems"
"""The names of changes that are no settings: somebody edited these."""
FORMAT = 4
"""Of the files of a run, in sessions.jsonl. A change that makes older runs unreadable adds 1."""


def read_stop(path: Path) -> tuple[int, str, str] | None:
    """Step, finding ("" = none) and message of the error that ended a run; None without one."""
    file = path / STOP_FILE
    if not file.exists():
        return None
    with reported(ConfigError, f"cannot read {file}", OSError, ValueError):
        stop = parse_json(file.read_bytes())
    return stop["step"], stop["finding"] or "", stop["message"]


def read_sessions(path: Path) -> list[dict[str, Any]]:
    """The starts of a run, oldest first; one that a kill cut off at the end is left out.

    Raises:
        DataError: another line is damaged.
        ConfigError: the file cannot be read.
    """
    file = path / SESSIONS_FILE
    with reported(ConfigError, f"cannot read {file}", OSError):
        return [session for _, session in json_lines(file, dict)]


def read_changes(path: Path) -> list[tuple[int, str, Any, Any]]:
    """What was changed when a run was resumed: (step, setting, before, now).

    Changes after a step that a later start went back to are left out: they were made again, or not.
    """
    changes: list[tuple[int, str, Any, Any]] = []
    for session in read_sessions(path):
        step, changed = session["step"], session.get("changed", {})
        changes = [change for change in changes if change[0] < step]
        changes += [(step, name, before, now) for name, (before, now) in changed.items()]
    return changes
