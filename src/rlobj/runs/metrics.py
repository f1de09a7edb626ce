"""metrics.jsonl: its lines, and what they say about held-out problems."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlobj.base.errors import ConfigError, reported
from rlobj.base.files import json_lines
from rlobj.runs.layout import METRICS_FILE

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


class HeldOutMetric(NamedTuple):
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


ACCURACY = HeldOutMetric("eval/accuracy", "held-out accuracy")
MEASURES = (ACCURACY, HeldOutMetric("eval/reward", "held-out reward"))
"""The mean reward takes the place of the accuracy where nothing says which responses are right."""


def measure_of(lines: Sequence[Mapping[str, Any]]) -> HeldOutMetric:
    """What the newest evaluation in lines of metrics measured; the accuracy before the first."""
    measured = (measure for line in reversed(lines) for measure in MEASURES if measure.key in line)
    return next(measured, ACCURACY)


def read_metrics(run: Path, progress: Progress = lambda done, total: None) -> list[dict[str, Any]]:
    """The numbers in the lines of a run's metrics.jsonl; none without such a file.

    A line that a kill cut off at the end is left out, and None = not finite.

    Args:
        run: the run's folder.
        progress: called with (bytes read, all bytes).

    Raises:
        DataError: another line is damaged.
        ConfigError: the file cannot be read.
    """
    file, lines = run / METRICS_FILE, []
    with reported(ConfigError, f"cannot read {file}", OSError):
        for end, line in json_lines(file, _numbers):
            lines.append(line)
            if len(lines) % 100 == 0:
                progress(end, file.stat().st_size)
    return lines


def _numbers(line: Any) -> dict[str, Any]:
    if type(line["step"]) is not int:
        raise TypeError("no step")
    return {key: value for key, value in line.items() if isinstance(value, int | float | None)}
