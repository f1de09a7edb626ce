"""What another trainer logged, with the names of metrics.jsonl, which `logs.yaml` has.

trainer_state.json      the trainer of transformers, and so TRL
NAME.jsonl              verl's logger `file`
NAME.wandb              W&B, also offline
events.out.tfevents.*   TensorBoard
"""

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from rlobj.base.errors import ConfigError, MissingExtra, reported
from rlobj.base.files import json_lines, parse_json
from rlobj.base.paths import there
from rlobj.base.yaml import packaged_table
from rlobj.runs.layout import is_run
from rlobj.settings.run_config import RunConfig

Logged = Iterator[Mapping[str, Any]]

NAMES: dict[str, dict[str, str]] = packaged_table("rlobj.runs", "logs.yaml")
"""Metric -> trainer -> its name there; * stands for any text."""
_STEPS = ("step", "train/global_step", "training/global_step", "_step")


@dataclass(frozen=True)
class Log:
    """The log of a run in another trainer.

    Attributes:
        path: the file or, of TensorBoard, the folder.
        lines: as those of metrics.jsonl.
    """

    path: Path
    lines: list[dict[str, Any]]

    @property
    def config(self) -> RunConfig:
        """The settings that the log shows; the longest response shows the limit of tokens."""
        longest, rate = self._largest("lengths/max"), self._largest("train/learning_rate")
        settings: dict[str, Any] = {"sampling": {"max_tokens": max(int(longest), 2)}}
        settings |= {"training": {"learning_rate": rate}} if rate else {}
        return RunConfig(**settings)

    def _largest(self, name: str) -> float:
        """The largest positive finite value of a metric; 0 if there is none."""
        return max((x for line in self.lines if 0 < (x := line.get(name, 0)) < math.inf), default=0)

    @property
    def note(self) -> str:
        """What cannot be judged."""
        what = "settings without effect, and what an objective did to tokens, cannot be judged"
        return f"read from {self.path}, a log of another trainer, without tokens: {what}"


def read_log(path: Path) -> Log | None:
    """Read the log of another trainer; None where none has rewards, or beside a record of rlobj.

    Args:
        path: the file, or a folder that has it.

    Raises:
        ConfigError: a damaged log, several logs, or one whose package is not installed.
    """
    if not there(path) or any(map(is_run, (path, *path.glob("*")))):
        return None
    for read, patterns in _READERS.items():
        places = {place for pattern in patterns for place in path.glob(pattern)}
        files = {place.resolve() for place in places if place.is_file()}  # no pipe, no folder
        files |= {path} if path.is_file() and path.match(patterns[0]) else set()
        sources = {file.parent for file in files} if read is _tensorboard else files
        with reported(ConfigError, f"cannot read {path}", Exception):  # of the packages' readers
            logs = [Log(source, _lines(read(source))) for source in sorted(sources)]
        logs = [log for log in logs if any("reward/mean" in line for line in log.lines)]
        if read is _trainer_state:  # a checkpoint has all steps before it
            logs = sorted(logs, key=lambda log: len(log.lines))[-1:]
        if len(logs) > 1:
            names = ", ".join(str(log.path) for log in logs)
            raise ConfigError(f"{path} has the logs of several runs. Name one: {names}")
        if logs:
            return logs[0]
    return None


def _lines(logged: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The metrics that rlobj has, too, by step; a later value replaces an earlier one."""
    steps: dict[int, dict[str, dict[str, float]]] = {}
    for entry in logged:
        step = next((entry[name] for name in _STEPS if name in entry), None)
        if not (isinstance(step, int | float) and abs(step) < 2**53):
            continue
        for name, value in entry.items():
            metric = _metric(name.removeprefix("train/").replace("eval/", "eval_", 1))
            if metric and isinstance(value, int | float):
                steps.setdefault(int(step), {}).setdefault(metric, {})[name] = value
    return [{"step": step, **_line(metrics)} for step, metrics in sorted(steps.items())]


def _line(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The metrics of a step: means where several names are one metric, as of several test sets.

    Where only the ends of the rewards are known, their standard deviation is the largest that fits:
    √((max − mean)·(mean − min)), which is exact if there are two values (Bhatia and Davis 2000).
    """
    line = {metric: fmean(values.values()) for metric, values in metrics.items()}
    names = ("reward/mean", "scores/min", "scores/max")
    mean, low, high = (line.get(name, math.nan) for name in names)
    if (variance := (high - mean) * (mean - low)) >= 0:
        line.setdefault("reward/std", math.sqrt(variance))
    return line


@cache
def _metric(name: str) -> str | None:
    rows = ((metric, theirs) for metric, row in NAMES.items() for theirs in row.values())
    return next((metric for metric, theirs in rows if fnmatchcase(name, theirs)), None)


def _trainer_state(file: Path) -> Logged:
    yield from map(dict, parse_json(file.read_bytes())["log_history"])


def _verl(file: Path) -> Logged:
    for _, line in json_lines(file, lambda line: line):
        if not (isinstance(line, dict) and isinstance(line.get("data"), dict)):
            return  # a file of problems
        yield {**line["data"], "step": line.get("step")}


def _wandb(file: Path) -> Logged:
    """A header of 7 bytes and LevelDB's log format: pieces of records, in blocks of 32 KiB."""
    if find_spec("wandb") is None:
        raise MissingExtra("wandb", "trackers", "a log of W&B")
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportMissingImports]

    data, place, record = file.read_bytes(), 7, b""
    while place + 7 < len(data):
        size, piece = struct.unpack_from("<HB", data, place + 4)
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if piece in (1, 4) and place <= len(data):  # whole, or the last piece
            items = Record.FromString(record).history.item
            yield {
                "/".join(item.nested_key) or item.key: parse_json(item.value_json) for item in items
            }
            record = b""
        if (left := 2**15 - place % 2**15) < 7:  # too short for another piece
            place += left


def _tensorboard(folder: Path) -> Logged:
    if find_spec("tensorboard") is None:
        raise MissingExtra("tensorboard", "trackers", "a log of TensorBoard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    for name in events.Tags()["scalars"]:
        yield from ({"step": event.step, name: event.value} for event in events.Scalars(name))


_EVENTS = "events.out.tfevents.*"
_READERS = {
    _trainer_state: ("trainer_state.json", "checkpoint-*/trainer_state.json"),
    _verl: ("*.jsonl",),
    _wandb: ("*.wandb", "**/*.wandb"),
    _tensorboard: (_EVENTS, f"**/{_EVENTS}"),
}
"""What reads a log -> the places of its files, seen from the folder; the first has their names."""
