"""The folder of a run: what it tells before anything is loaded, and `RunFolder`, which writes it.

    RUN/config.resolved.yaml     every setting of the run
    RUN/metrics.jsonl            one JSON object per step
    RUN/sessions.jsonl           one JSON object per start: time, step, versions
    RUN/samples/step-000010.parquet
    RUN/records/                 see `runs.recorder`
    RUN/tables/step-000010-rank-0.parquet
    RUN/initial/                 the policy that came from another run
    RUN/checkpoints/step-000010/ see `training.checkpoint`

Files are written under a temporary name and renamed when complete; metrics.jsonl is appended to.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from rlobj.answers import verifier_version
from rlobj.base.errors import Argument, ConfigError, Message, RunError, nearest, reported
from rlobj.base.files import a_file, link, parse_json, read_whole, remove, write_whole
from rlobj.base.folders import is_locked, lock_folder
from rlobj.base.paths import nearby, path_of, step_of, there
from rlobj.installation import require_format, session
from rlobj.settings.presets import read_yaml
from rlobj.settings.run_config import RunConfig, given_settings, settings_of

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (done, total)."""

CONFIG_FILE = "config.resolved.yaml"
"""Holds every setting of the run; a folder with it is a run."""

STOP_FILE = "stopped.json"
"""Why a run ended with an error: `step`, `finding` (or null) and `message`."""

REWARD_FILE = "the file of a reward"
"""The name of a change that is no setting: somebody edited that file."""
FORMAT = 3
"""Of the files of a run, in sessions.jsonl. A change that makes older runs unreadable adds 1."""
MOST_LINE = 1 << 24
"""Bytes of the longest line of metrics.jsonl."""
FOLDERS = ("samples", "records", "tables", "checkpoints")
"""The folders of a new run."""


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
    return there(path / CONFIG_FILE)


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
        ConfigError: no path, something else, or a text that can be no path.
    """
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    if not paths or not all(isinstance(path, str | Path) for path in paths):
        raise ConfigError(f"runs is {runs!r}; expected the folder of a run, or a list of them")
    return list(map(path_of, paths))


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
    around = next(filter(is_run, path.absolute().parents), None)
    inside = f". It is inside of a run: {around}" if around else ""
    if there(path) and not path.is_dir():
        what = "a file" if path.is_file() else "a pipe or a device"
        raise ConfigError(f"{path} is not a run: it is {what}, and a run is a folder{inside}")
    if not path.is_dir():
        beside = [str(each) for each in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(str(path), beside, spell_out=False)
        raise ConfigError(f"{path} is not a run: there is no such folder.{near}")
    if not is_run(path):
        below = sorted(str(each) for each in path.glob("*") if is_run(each))[-3:]
        newest = f". Runs in it: {', '.join(below)}" if below else inside
        raise ConfigError(f"{path} is not a run: it has no {CONFIG_FILE}{newest}")
    _refuse_other_formats(path)
    settings = read_yaml(path / CONFIG_FILE)
    if in_another_trainer(path):
        return settings
    if lacking := _lacking(path, settings):
        raise ConfigError(
            f"{path / CONFIG_FILE} is damaged: it lacks {', '.join(lacking)}. Restore it from a "
            "copy. The settings are also in state.json of a checkpoint, as JSON"
        )
    return settings


warn_once = functools.cache(logger.warning)


def _refuse_other_formats(path: Path) -> None:
    """Check the format that the newest start of a run has noted; before the first there is none."""
    for start in read_sessions(path)[-1:]:
        weights = Argument("model", "checkpoints/step-N/model")
        instead = Message("start a new run from its weights: ", weights)
        require_format(path, start, FORMAT, start.get("versions"), instead)


def _lacking(path: Path, settings: Mapping[str, Any]) -> list[str]:
    """The sections and settings that every run has, and that are not there."""
    whole = read_whole(path / CONFIG_FILE).endswith(b"\n")
    found = [] if whole else ["the end of its last line"]
    for section, expected in settings_of(RunConfig()).items():
        given = settings.get(section)
        if given is None and section not in ("preset", "origin"):
            found.append(section)
        elif isinstance(given, Mapping) and section != "rewards":
            found += [f"{section}.{key}" for key in expected if key not in given]
    return found


def is_number(value: Any) -> bool:
    """Whether a value of a file is a finite number, of a size that metrics have."""
    return isinstance(value, int | float) and abs(value) < 1e100


def read_metrics(path: Path, damage: list[str] | None = None) -> list[dict[str, Any]]:
    """`read_lines` with a warning for each note; `damage` gets them too.

    With `damage`, no other process writes to the file: an incomplete last line is damage.
    """
    notes: list[str] = [] if damage is None else damage
    lines = read_lines(path, notes, growing=damage is None)
    for note in notes:
        warn_once(f"{path}: {note}")
    return lines


def read_lines(
    run: Path,
    notes: list[str],
    progress: Progress = lambda done, total: None,
    *,
    growing: bool = True,
) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl in the order of steps; none without such a file.

    A line has numbers only; None = not finite.

    Args:
        run: the run's folder.
        notes: get the damaged lines. These are left out, and the lines after them are read.
        progress: called with (bytes read, all bytes).
        growing: leave out an incomplete last line while another process trains in the folder.

    Raises:
        ConfigError: the file cannot be read.
    """
    lines: list[dict[str, Any]] = []
    damage: list[str] = []
    seen, newest, growing = set[int](), -1, growing and is_locked(run)
    with reported(ConfigError, f"cannot read {run / 'metrics.jsonl'}", OSError):
        for number, text in enumerate(_texts(run / "metrics.jsonl", progress), 1):
            if growing and len(text) < MOST_LINE and not text.endswith(b"\n"):
                break
            known, line = hash(text.strip()), _numbers(text)
            if line is None:
                damage.append(f"line {number} cannot be read and is left out")
            elif known in seen:
                damage.append(f"line {number} repeats step {line['step']} and is left out")
            else:
                if line["step"] <= newest:
                    what = f"step {line['step']}, after a line of step {newest}"
                    damage.append(f"line {number} has {what}")
                seen.add(known)
                newest = max(newest, line["step"])
                lines.append(line)
            if len(text) == MOST_LINE:
                damage.append(f"line {number} is too long: what follows is not read")
                break
    if len(damage) > 5:
        first = " ".join(damage[5].split()[:2])
        damage = [*damage[:5], f"more lines are damaged, from {first}"]
    notes += [f"metrics.jsonl: {each}" for each in damage]
    return sorted(lines, key=itemgetter("step"))


def _texts(file: Path, progress: Progress) -> Iterator[bytes]:
    """The lines of a file, each of at most `MOST_LINE` bytes; none if it is not there."""
    with suppress(FileNotFoundError, NotADirectoryError), a_file(file).open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        for number, text in enumerate(iter(lambda: opened.readline(MOST_LINE), b""), 1):
            yield text
            if number % 100 == 0:
                progress(opened.tell(), size)


def _numbers(text: bytes) -> dict[str, Any] | None:
    """The numbers of a line; None if it is damaged."""
    try:
        line = parse_json(text)
        if type(line["step"]) is not int or not 0 <= line["step"] < 2**53:
            return None
    except (ValueError, TypeError, KeyError):
        return None
    numbers = {key: x for key, x in line.items() if x is None or isinstance(x, int | float)}
    return {key: x if is_number(x) else None for key, x in numbers.items()}


def read_stop(path: Path) -> tuple[int, str, str] | None:
    """Step, finding ("" = none) and message of the error that ended a run; None without one."""
    try:
        told = parse_json(read_whole(path / STOP_FILE))
        return int(told["step"]), str(told["finding"] or ""), str(told["message"])
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
    file, found = path / "sessions.jsonl", []
    with reported(ConfigError, f"cannot read {file}", OSError):
        lines = read_whole(file).splitlines() if file.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            each = parse_json(line)
            if type(each["step"]) is not int:
                raise TypeError
            found.append(each)
        except (ValueError, TypeError, KeyError):
            warn_once(f"{path}: sessions.jsonl: line {number} cannot be read and is left out")
    return found


def read_changes(path: Path) -> list[tuple[int, str, Any, Any]]:
    """What was changed when a run was resumed: (step, setting, before, now).

    Changes after a step that a later start went back to are left out: they were made again, or not.
    """
    found: list[tuple[int, str, Any, Any]] = []
    for start in read_sessions(path):
        step, changed = start["step"], start.get("changed", {})
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
    if not saved and not path.is_dir():
        raise ConfigError(f"there is no folder {path}: the run is not there any more")
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
    known = {step: x for step, x in lines.items() if x is not None}
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


def dump_config(config: RunConfig) -> str:
    """Convert the configuration to YAML, from which `RunConfig` reads an equal one."""
    return _yaml(settings_of(config))


def _yaml(settings: Mapping[str, Any]) -> str:
    from rlobj.base.yaml import dump_yaml

    return dump_yaml(dict(settings), sort_keys=False, allow_unicode=True)


class RunFolder:
    """The files of one run.

    Args:
        path: the folder.
        foreign: another trainer makes the run; only the given settings are written.
    """

    def __init__(self, path: Path | str, foreign: bool = False) -> None:
        self.path, self._foreign = Path(path).absolute(), foreign
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"

    def refuse_if_taken(self) -> None:
        """Raise ConfigError if the folder already has a run or parts of one."""
        if is_run(self.path):
            taken = f"already contains a run. {how_to_continue(self.path)}\nor choose"
        elif any(path.exists() for path in (self.metrics, *self.path.glob("*/step-*"))):
            taken = "contains parts of a run without its config.resolved.yaml. Choose"
        else:
            return
        raise ConfigError(f"{self.path} {taken} another folder with ", Argument("out", "DIR"))

    def adopted(self, config: RunConfig) -> RunConfig:
        """The configuration with the run's own copy of a policy that comes from another run."""
        if config.origin is None:
            return config
        model = config.model.model_copy(update={"name": str(self.path / "initial")})
        return config.model_copy(update={"model": model})

    def create(
        self, config: RunConfig, folders: Sequence[str] = FOLDERS, initial: str | None = None
    ) -> None:
        """Create the folder of a new run with empty folders in it, and write its configuration.

        Args:
            config: of the run.
            folders: the empty folders.
            initial: the model of an `adopted` configuration, which is linked or copied.

        Raises:
            ConfigError: the folder already has a run, or cannot be written.
        """
        self.refuse_if_taken()
        try:
            for folder in folders:
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            if initial is not None:
                shutil.copytree(initial, str(config.model.name), copy_function=link)
            self.write_config(config)
        except (OSError, RunError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot write the run to {nearby(self.path)}: {reason}") from error

    def write_config(self, config: RunConfig) -> None:
        """Write or replace the run's configuration."""
        text = _yaml(given_settings(config)) if self._foreign else dump_config(config)
        write_whole(self.path / CONFIG_FILE, text.encode())

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder, so that no second process trains in it.

        Raises:
            ConfigError: another process has the lock, or the folder cannot be written.
        """
        return lock_folder(self.path, "training in")

    @functools.cached_property
    def id(self) -> str:
        """Random id of the run, which its sessions have; a new one before the first."""
        known = [str(each["run"]) for each in read_sessions(self.path) if "run" in each]
        return known[0] if known else secrets.token_hex(8)

    def add_session(self, step: int, changed: Mapping[str, tuple[Any, Any]]) -> None:
        """Record that training starts after a step, and what may change its results.

        Args:
            step: the steps done.
            changed: settings that were changed (before, now).

        Raises:
            OSError: the file cannot be written.
        """
        facts = {"run": self.id, "format": FORMAT, **session("started"), "step": step}
        facts["verifier"] = verifier_version()
        with (self.path / "sessions.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts | ({"changed": changed} if changed else {})) + "\n")

    # metrics.jsonl

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl; numbers that are not finite become null."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in metrics.items()
        }
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """Read metrics.jsonl; a warning names each damaged line, which is left out."""
        return read_metrics(self.path)

    def truncate(self, step: int) -> None:
        """Delete metrics, tables and checkpoints of later steps, so that they can be repeated.

        A damaged metrics.jsonl stays as metrics.damaged.jsonl.
        """
        damage: list[str] = []
        lines = read_metrics(self.path, damage)
        kept = [line for line in lines if line["step"] <= step]
        if damage:
            remove(aside := self.path / "metrics.damaged.jsonl")
            link(str(self.metrics), str(aside))
        if (known := len({line["step"] for line in kept} - {0})) < step:
            logger.warning(
                f"{self.metrics} has lines of {known} of {step} steps. Checkpoints of the others "
                "are not removed: they may be the best"
            )
        write_whole(self.metrics, "".join(json.dumps(line) + "\n" for line in kept).encode())
        for folder in FOLDERS:
            for entry in (self.path / folder).glob("step-*"):
                if step_of(entry) > step:
                    remove(entry)
        for partial in self.checkpoints.glob(".*.partial"):
            remove(partial)
        remove(self.path / STOP_FILE)

    def steps_saved(self) -> int:
        """Return the step of the newest checkpoint; 0 before the first."""
        newest = newest_checkpoint(self.path)
        return 0 if newest is None else step_of(newest)
