"""The checkpoints of a run: which there are, which is the best, and which are intact."""

import json
import math
import zlib
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, NonNegativeInt

from rlobj.base.errors import ConfigError, reported, warn, warn_once
from rlobj.base.files import parse_json, remove
from rlobj.base.paths import step_of
from rlobj.base.validation import Model
from rlobj.runs.configuration import HELD_OUT_PROBLEMS, REWARD_FILE, read_changes
from rlobj.runs.layout import how_to_continue
from rlobj.runs.metrics import ACCURACY, HeldOutMetric, measure_of, read_metrics

MANIFEST = "manifest.json"
_BLOCK = 1 << 24  # bytes read at a time
_READ: set[tuple[str, int, int, int]] = set()
"""Files that this process has read and found intact: path, time of the last change, size, CRC."""


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
    named = {str(step_of(checkpoint)): checkpoint for checkpoint in saved} | {"newest": saved[-1]}
    if best := best_checkpoint(path):
        named["best"] = best
    if (name or "newest") not in named:
        why = "none was evaluated" if name == "best" else "checkpoint.keep removes old ones"
        raise ConfigError(f"{path} has no checkpoint {name} ({why}); it has {', '.join(named)}")
    return named[name or "newest"]


def newest_checkpoint(path: Path) -> Path | None:
    """The newest checkpoint of a run, or None before the first."""
    return next(reversed(checkpoints(path)), None)


def held_out(path: Path) -> tuple[HeldOutMetric, dict[Path, float]]:
    """What a run measures, and its value for each checkpoint that was evaluated, oldest first.

    Those from before the newest evaluation's settings and reward are left out: they do not compare.
    """
    metrics = read_metrics(path)
    measure = measure_of(metrics)
    lines = {line["step"]: line.get(measure.key) for line in metrics}
    values = {step: value for step, value in lines.items() if value is not None}
    changes = [
        step
        for step, name, _, _ in read_changes(path)
        if name.startswith(("evaluation.", "rewards.", REWARD_FILE, HELD_OUT_PROBLEMS))
        and name != "evaluation.every"
    ]
    since = max((step for step in changes if step < max(values, default=0)), default=-1)
    steps = {checkpoint: step_of(checkpoint) for checkpoint in checkpoints(path)}
    return measure, {
        checkpoint: values[step]
        for checkpoint, step in steps.items()
        if step in values and step > since
    }


def best_checkpoint(path: Path, before: float = math.inf) -> Path | None:
    """The checkpoint with the highest held-out accuracy or reward, the earliest of equals.

    None if none of those before that step was evaluated, or has an accuracy above 0.
    """
    measure, values = held_out(path)
    lowest = 0.0 if measure is ACCURACY else -math.inf
    candidates = [
        checkpoint
        for checkpoint, value in values.items()
        if value > lowest and step_of(checkpoint) < before
    ]
    return max(candidates, key=values.__getitem__, default=None)


class State(Model):
    """What `state.json` holds."""

    model_config = ConfigDict(extra="ignore", strict=True)

    step: NonNegativeInt
    objective: dict[str, Any]
    """Controllers by name, and `update`."""
    stream: dict[str, Any]
    """See `ProblemStream.state`: the place after the rollout of that step."""
    failures: dict[str, NonNegativeInt]
    """Updates that were not finite, and steps without an update, each in a row."""
    digests: dict[str, str]
    """Of what may be edited before the run is resumed, by the names of such changes."""
    settings: dict[str, Any]
    """Of the run at that step."""
    strategy: str
    processes: int


def newest_sound(path: Path, *, set_aside: bool = False) -> Path | None:
    """Return the newest checkpoint whose files are intact: the one to resume from.

    Args:
        path: the run's folder.
        set_aside: rename the newer, damaged checkpoints, with a warning.

    Returns:
        Its folder; None if there is no checkpoint.

    Raises:
        ConfigError: there are checkpoints, and all of them are damaged.
    """
    damaged: dict[Path, str] = {}
    for checkpoint in reversed(checkpoints(path)):
        if (problem := damage(checkpoint)) is None:
            break
        damaged[checkpoint] = problem
    else:
        if not damaged:
            return None
        listed = "\n".join(f"  {folder.name}: {what}" for folder, what in damaged.items())
        raise ConfigError(f"no checkpoint in {path / 'checkpoints'} can be read:\n{listed}")
    for folder, what in damaged.items():
        if not set_aside:
            warn_once(f"{folder} is damaged ({what}): {checkpoint.name} is used")
            continue
        aside = folder.with_name(f"damaged-{folder.name}")
        remove(aside)
        folder.rename(aside)
        warn("%s is damaged (%s): set aside as %s", folder, what, aside.name)
    return checkpoint


def read_state(checkpoint: Path) -> State:
    """Read the `state` that was given to `write`.

    Raises:
        ConfigError: it cannot be read, or an entry is missing or has another type.
    """
    file = checkpoint / "state.json"
    with reported(ConfigError, f"cannot read {file}", OSError, ValueError):
        return State(**parse_json(file.read_bytes()))


# manifest.json: size in bytes and CRC-32 of every file of a checkpoint.


def write_manifest(place: Path) -> None:
    """Write the manifest of the files in a folder."""
    manifest = place / MANIFEST
    files = sorted(file for file in place.rglob("*") if file.is_file() and file != manifest)
    listed = {str(file.relative_to(place)): [file.stat().st_size, _crc(file)] for file in files}
    manifest.write_text(json.dumps(listed, indent=1), encoding="utf-8")


def require_sound(checkpoint: Path, within: str = "") -> None:
    """Check the files of a checkpoint, or of a folder `within` it.

    Raises:
        ConfigError: one is damaged.
    """
    if (problem := damage(checkpoint, within)) is not None:
        raise ConfigError(f"{checkpoint} is damaged ({problem}): name another checkpoint")


def damage(checkpoint: Path, within: str = "") -> str | None:
    """Describe the first damaged file of a checkpoint; None if all files are intact.

    Args:
        checkpoint: its folder.
        within: only files in this folder of it.
    """
    try:
        listed = parse_json((checkpoint / MANIFEST).read_bytes())
        for name, (size, crc) in listed.items():
            file = checkpoint / name
            if not name.startswith(within):
                continue
            if not file.is_file():
                return f"{name} is missing"
            status = file.stat()
            stamp = (str(file), status.st_mtime_ns, status.st_size, crc)
            if stamp not in _READ and (status.st_size != size or _crc(file) != crc):
                return f"{name} has changed since it was written"
            _READ.add(stamp)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{MANIFEST}: {error}"
    return None


def _crc(file: Path) -> int:
    total = 0
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            total = zlib.crc32(block, total)
    return total
