"""metrics.jsonl: its lines, and what they say about held-out problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from rlobj.base.errors import ConfigError, reported, warn_once
from rlobj.base.files import lines_of, parse_json
from rlobj.base.folders import is_locked
from rlobj.runs.layout import METRICS_FILE

Progress = Callable[[int, int], None]
"""Called with (done, total)."""
MOST_LINE = 1 << 24
"""Bytes of the longest line of metrics.jsonl."""


class Measure(NamedTuple):
    """What a run measures on held-out problems: one of `MEASURES`.

    Attributes:
        key: its name in metrics.jsonl.
        name: its name on screens.
    """

    key: str
    name: str

    def text(self, value: float) -> str:
        """A value or an error for screens and pages: an accuracy in percent."""
        return f"{value:.1%}" if self.key == "eval/accuracy" else f"{value:.3f}"

    def error(self, line: Mapping[str, Any], unknown: float = 0.0) -> float:
        """The standard error in a line of metrics: for other samples on the same problems, or with
        one sample per problem for other problems."""
        errors = [line.get(f"{self.key}_se_{over}") for over in ("samples", "problems")]
        finite = [error for error in errors if error is not None and not math.isnan(error)]
        return finite[0] if finite else unknown


ACCURACY = Measure("eval/accuracy", "held-out accuracy")
MEASURES = (ACCURACY, Measure("eval/reward", "held-out reward"))
"""The mean reward takes the place of the accuracy where nothing says which responses are right."""


def measure_of(lines: Sequence[Mapping[str, Any]]) -> Measure:
    """What the newest evaluation in lines of metrics measured; the accuracy before the first."""
    measured = (measure for line in reversed(lines) for measure in MEASURES if measure.key in line)
    return next(measured, ACCURACY)


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
    with reported(ConfigError, f"cannot read {run / METRICS_FILE}", OSError):
        for number, text in enumerate(_texts(run / METRICS_FILE, progress), 1):
            if growing and len(text) < MOST_LINE and not text.endswith(b"\n"):
                break
            digest, line = hash(text.strip()), _numbers(text)
            if line is None:
                damage.append(f"line {number} cannot be read and is left out")
            elif digest in seen:
                damage.append(f"line {number} repeats step {line['step']} and is left out")
            else:
                if line["step"] <= newest:
                    what = f"step {line['step']}, after a line of step {newest}"
                    damage.append(f"line {number} has {what}")
                seen.add(digest)
                newest = max(newest, line["step"])
                lines.append(line)
            if len(text) == MOST_LINE:
                damage.append(f"line {number} is too long: what follows is not read")
                break
    if len(damage) > 5:
        first = " ".join(damage[5].split()[:2])
        damage = [*damage[:5], f"more lines are damaged, from {first}"]
    notes += [f"{METRICS_FILE}: {what}" for what in damage]
    return sorted(lines, key=itemgetter("step"))


def _texts(file: Path, progress: Progress) -> Iterator[bytes]:
    """The lines of a file, each of at most `MOST_LINE` bytes; none if it is not there."""
    with suppress(FileNotFoundError, NotADirectoryError):
        size, done = file.stat().st_size, 0
        for number, text in enumerate(lines_of(file, MOST_LINE), 1):
            yield text
            done += len(text)
            if number % 100 == 0:
                progress(done, size)


def _numbers(text: bytes) -> dict[str, Any] | None:
    """The numbers of a line; None if it is damaged."""
    try:
        line = parse_json(text)
        if type(line["step"]) is not int or not 0 <= line["step"] < 2**53:
            return None
    except (ValueError, TypeError, KeyError):
        return None
    return {
        key: value if is_number(value) else None
        for key, value in line.items()
        if value is None or isinstance(value, int | float)
    }
