"""What a run's folder tells before anything is loaded: settings, metrics and checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from rlobj.base.errors import ConfigError, nearest
from rlobj.base.files import step_of
from rlobj.config.presets import read_yaml
from rlobj.config.run_config import RunConfig

Progress = Callable[[int, int], None]
"""Called with (done, total)."""

CONFIG_FILE = "config.resolved.yaml"
"""Holds every setting of the run; a folder with it is a run."""

STOP_FILE = "stopped.json"
"""Why a run ended with an error: `step`, `finding` (or null) and `message`."""

REWARD_FILE = "the file of a reward"
"""The name of a change that is no setting: somebody edited that file."""


class Measure(NamedTuple):
    """What a run measures on held-out problems: one of `MEASURES`.

    Attributes:
        key: its name in metrics.jsonl.
        name: its name on screens.
    """

    key: str
    name: str

    def error(self, line: Mapping[str, Any], unknown: float = 0.0) -> float:
        """The standard error in a line of metrics: for other samples on the same problems, or with
        one sample per problem for other problems."""
        errors = [line.get(f"{self.key}_se_{over}") for over in ("samples", "problems")]
        known = [error for error in errors if error is not None and not math.isnan(error)]
        return known[0] if known else unknown


ACCURACY = Measure("eval/accuracy", "held-out accuracy")
MEASURES = (ACCURACY, Measure("eval/reward", "held-out reward"))
"""The mean reward takes the place of the accuracy where nothing says which responses are right."""


def measure_of(lines: Sequence[Mapping[str, Any]]) -> Measure:
    """What the newest evaluation in lines of metrics measured; the accuracy before the first."""
    found = (each for line in reversed(lines) for each in MEASURES if each.key in line)
    return next(found, ACCURACY)


def is_run(path: Path) -> bool:
    """Whether the folder holds a run."""
    return (path / CONFIG_FILE).is_file()


def named_folder(path: Path) -> Path:
    """The folder that names a run: the run's, or that of the trainer for its record `_rlobj`."""
    path = path.resolve()
    return path.parent if path.name == "_rlobj" and not is_run(path.parent) else path


def in_another_trainer(path: Path) -> bool:
    """Whether the folder is the record of a run in another trainer, which has the checkpoints."""
    return is_run(path) and not (path / "checkpoints").is_dir()


def how_to_continue(path: Path) -> str:
    """What continues the run in a folder: a sentence without its end."""
    if in_another_trainer(path):
        return (
            "It is the record of a run in another trainer. To continue that run, start its script "
            "again; in TRL, with trainer.train(resume_from_checkpoint=True)"
        )
    return f"Resume it with: rlobj train --resume {path}"


def run_paths(runs: Any) -> list[Path]:
    """The folders of one run or of several runs, as a caller names them.

    Raises:
        ConfigError: no path, or something else.
    """
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    if not paths or not all(isinstance(path, str | Path) for path in paths):
        raise ConfigError(f"runs is {runs!r}; expected the folder of a run, or a list of them")
    return list(map(Path, paths))


def read_run_config(path: Path) -> RunConfig:
    """Read and check the settings of a run.

    Raises:
        ConfigError: as `read_settings`, or for settings that this version does not know.
    """
    return RunConfig(**read_settings(path))


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a run as they are written; nothing that they name is imported.

    Raises:
        ConfigError: the path is not the folder of a run.
    """
    around = next(filter(is_run, path.absolute().parents), None)
    inside = f". It is inside of a run: {around}" if around else ""
    if path.is_file():
        raise ConfigError(f"{path} is not a run: it is a file, and a run is a folder{inside}")
    if not path.is_dir():
        beside = [str(each) for each in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(str(path), beside, spell_out=False)
        raise ConfigError(f"{path} is not a run: there is no such folder.{near}")
    if not is_run(path):
        raise ConfigError(f"{path} is not a run: it has no {CONFIG_FILE}{inside}")
    settings = read_yaml(path / CONFIG_FILE)
    if isinstance(output := settings.get("output"), dict):
        for name in ("tokens_every", "token_responses"):  # settings of 0.1.0 that are gone
            output.pop(name, None)
    return settings


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, without an incomplete last line after a crash.

    A run without the file has none.
    """
    lines = read_lines(path, [])
    return list(takewhile(lambda x: isinstance(x, dict) and isinstance(x.get("step"), int), lines))


def read_lines(
    run: Path, notes: list[str], progress: Progress = lambda done, total: None
) -> Iterator[Any]:
    """The lines of metrics.jsonl as JSON; a note if a damaged one hides those after it.

    A last line that a crash has cut is no damage.
    """
    file, done = run / "metrics.jsonl", 0
    if not file.exists():
        return
    size = file.stat().st_size
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            done += len(line)
            try:
                yield _parsed(line)
            except ValueError:
                if left := sum(1 for _ in lines):
                    what = f"damaged at line {number}; {left + 1} lines were not read"
                    notes.append(f"metrics.jsonl is {what}")
                return
            if number % 100 == 0:
                progress(done, size)


def _parsed(text: bytes) -> Any:
    """JSON as Python objects; ValueError also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_stop(path: Path) -> tuple[int, str, str] | None:
    """Step, finding ("" = none) and message of the error that ended a run; None without one."""
    try:
        told = _parsed((path / STOP_FILE).read_bytes())
        return int(told["step"]), str(told["finding"] or ""), str(told["message"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError):  # of step 1e999
        return None


def read_sessions(path: Path) -> list[dict[str, Any]]:
    """The starts of a run, oldest first; lines that a crash has cut are left out."""
    file, found = path / "sessions.jsonl", []
    for line in file.read_bytes().splitlines() if file.exists() else ():
        with suppress(ValueError):
            found.append(_parsed(line))
    return [each for each in found if isinstance(each, dict) and isinstance(each.get("step"), int)]


def read_changes(path: Path) -> list[tuple[int, str, Any, Any]]:
    """What was changed when a run was resumed: (step, setting, before, now).

    Changes after a step that a later start went back to are left out: they were made again, or not.
    """
    found: list[tuple[int, str, Any, Any]] = []
    for session in read_sessions(path):
        step, changed = session["step"], session.get("changed", {})
        found = [each for each in found if each[0] < step]
        with suppress(ValueError, TypeError, AttributeError):  # no run has written it
            found += [(step, name, before, now) for name, (before, now) in changed.items()]
    return found


def checkpoints(path: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return sorted((path / "checkpoints").glob("step-*"), key=step_of)


def named_checkpoint(path: Path, name: str | None) -> Path:
    """The checkpoint of a run that a name stands for.

    Args:
        path: the run.
        name: "newest", also for None; "best", see `best_checkpoint`; or a step.

    Raises:
        ConfigError: the run has no such checkpoint.
    """
    saved = checkpoints(path)
    if not saved:
        raise ConfigError(f"{path} has no checkpoint yet. {how_to_continue(path)}")
    known = {str(step_of(each)): each for each in saved} | {"newest": saved[-1]}
    if best := best_checkpoint(path):
        known["best"] = best
    if (name or "newest") not in known:
        none = (
            "no checkpoint was evaluated" if name == "best" else "checkpoint.keep removes old ones"
        )
        raise ConfigError(
            f"{path} has no checkpoint {name} ({none}); expected one of {', '.join(known)}"
        )
    return known[name or "newest"]


def newest_checkpoint(path: Path) -> Path | None:
    """The newest checkpoint of a run, or None before the first."""
    return next(reversed(checkpoints(path)), None)


def held_out(path: Path) -> tuple[Measure, dict[Path, float]]:
    """What a run measures, and its value for each checkpoint that was evaluated, oldest first.

    Those from before the newest evaluation's settings and reward are left out: they do not compare.
    """
    metrics = read_metrics(path)
    measure = measure_of(metrics)
    lines = {line["step"]: line.get(measure.key) for line in metrics}
    known = {step: float(x) for step, x in lines.items() if isinstance(x, int | float)}
    changes = [
        step
        for step, name, _, _ in read_changes(path)
        if name.startswith(("evaluation.", "rewards.", REWARD_FILE)) and name != "evaluation.every"
    ]
    since = max((step for step in changes if step < max(known, default=0)), default=-1)
    steps = {each: step_of(each) for each in checkpoints(path)}
    found = {each: known[step] for each, step in steps.items() if step in known and step > since}
    return measure, found


def best_checkpoint(path: Path, before: float = math.inf) -> Path | None:
    """The checkpoint with the highest held-out accuracy or reward, the earliest of equals.

    None if none of those before that step was evaluated, or has an accuracy above 0.
    """
    measure, known = held_out(path)
    lowest = 0.0 if measure is ACCURACY else -math.inf
    found = {each: value for each, value in known.items() if value > lowest}
    measured = {each: value for each, value in found.items() if step_of(each) < before}
    return max(measured, key=measured.__getitem__, default=None)
