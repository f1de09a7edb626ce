"""The settings of a run, its starts, what was changed at them, and the error that ended it."""

from pathlib import Path
from typing import Any

from rlobj.base.errors import Argument, ConfigError, Message, nearest, reported
from rlobj.base.files import json_lines, parse_json
from rlobj.base.paths import there
from rlobj.base.yaml import dump_yaml
from rlobj.installation import require_format
from rlobj.runs.layout import CONFIG_FILE, SESSIONS_FILE, STOP_FILE, is_run
from rlobj.settings.presets import read_yaml
from rlobj.settings.run_config import RunConfig, given_settings, settings_of

REWARD_FILE, OBJECTIVE_FILE = "the file of a reward", "the file of an objective"
TRAINING_PROBLEMS, HELD_OUT_PROBLEMS = "the training problems", "the held-out problems"
"""The names of changes that are no settings: somebody edited these."""
FORMAT = 4
"""Of the files of a run, in sessions.jsonl. A change that makes older runs unreadable adds 1."""


def read_run_config(path: Path) -> RunConfig:
    """Read and check the settings of a run.

    Raises:
        ConfigError: as `read_settings`, or for settings that this version does not know.
    """
    return RunConfig(**read_settings(path))


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a run as they are written; nothing that they name is imported.

    Raises:
        ConfigError: the path is not the folder of a run, or another version of rlobj made the run.
    """
    if not path.is_dir():
        what = "it is a file, and a run is a folder" if there(path) else "there is no such folder"
        beside = [str(other) for other in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(str(path), beside, spell_out=False)
        raise ConfigError(f"{path} is not a run: {what}.{near}")
    if not is_run(path):
        below = ", ".join(sorted(str(other) for other in path.glob("*") if is_run(other))[-3:])
        newest = f". Runs in it: {below}" if below else ""
        raise ConfigError(f"{path} is not a run: it has no {CONFIG_FILE}{newest}")
    for start in read_sessions(path)[-1:]:  # before the first, no format is noted
        weights = Argument("model", f"{path}/checkpoints/step-N/model")
        instead = Message("start a new run from its weights: ", weights)
        require_format(path, start, FORMAT, start.get("versions"), instead)
    return read_yaml(path / CONFIG_FILE)


def dump_config(config: RunConfig, *, only_given: bool = False) -> str:
    """Convert the configuration to YAML, from which `RunConfig` reads an equal one.

    Args:
        config: of the run.
        only_given: leave out the settings that nobody gave, as `given_settings`.
    """
    settings = given_settings(config) if only_given else settings_of(config)
    return dump_yaml(settings)


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
