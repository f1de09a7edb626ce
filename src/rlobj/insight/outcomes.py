"""What came out of runs: accuracy, entropy, touched and spurious tokens, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.config.presets import difference
from rlobj.config.run_config import RunConfig, settings_of
from rlobj.config.run_folder import read_metrics, read_run_config

Line = Mapping[str, Any]
Z95 = 1.959964
"""Half-width of a 95% interval in standard errors."""


@dataclass(frozen=True)
class Spurious:
    """Spurious tokens, which a task that knows the truth counts.

    Attributes:
        tokens: spurious tokens of all updates.
        caught: those of them that the objective dropped.
        dropped: dropped tokens of responses that the task judged.
        ends: (spurious tokens, all tokens) of the first and of the last tenth of the steps.
        shares: the share of spurious tokens in each tenth of the steps.
    """

    tokens: float
    caught: float
    dropped: float
    ends: tuple[tuple[float, float], tuple[float, float]]
    shares: tuple[float, ...]

    @property
    def precision(self) -> float:
        """caught / dropped; NaN without dropped tokens."""
        return self.caught / self.dropped if self.dropped else math.nan

    @property
    def recall(self) -> float:
        """caught / tokens; NaN without spurious tokens."""
        return self.caught / self.tokens if self.tokens else math.nan


@dataclass(frozen=True)
class Outcome:
    """What came out of a run, from its metrics.jsonl.

    Attributes:
        run: the run's folder.
        name: of the preset, or else of the folder.
        config: the run's settings.
        lines: metrics.jsonl.
    """

    run: Path
    name: str
    config: RunConfig
    lines: Sequence[Line]

    @classmethod
    def read(cls, run: Path | str) -> Outcome:
        """Read a run.

        Raises:
            ConfigError: no run there, or a run without a finished step.
        """
        config, lines = read_run_config(Path(run)), read_metrics(Path(run))
        if not any("reward/mean" in line for line in lines):
            raise ConfigError(f"{run} has no finished step yet")
        name = Path(config.preset or run).stem
        return cls(Path(run), name, config, lines)

    @property
    def steps(self) -> list[Line]:
        """The lines of finished steps, without the evaluation before the first."""
        return [line for line in self.lines if "reward/mean" in line]

    def ends(self, name: str) -> tuple[float | None, float | None]:
        """The mean of a metric over the first and over the last tenth of the steps."""
        parts = self.tenths()
        return mean(parts[0], name), mean(parts[-1], name)

    def tenths(self) -> list[list[Line]]:
        """The steps in ten parts, or fewer if there are fewer steps."""
        steps, count = self.steps, min(10, len(self.steps))
        cuts = [i * len(steps) // count for i in range(count + 1)]
        return [steps[a:b] for a, b in pairwise(cuts)]

    def accuracies(self) -> tuple[tuple[float, float], ...]:
        """(held-out accuracy, half-width of its 95% interval), before and after; () without.

        The interval is for other samples on the same problems; with one sample per problem, for
        other problems.
        """
        known = [line for line in self.lines if line.get("eval/accuracy") is not None]
        if not known:
            return ()
        return tuple((line["eval/accuracy"], Z95 * _error(line)) for line in (known[0], known[-1]))

    @property
    def tokens(self) -> float:
        """Tokens of all steps that the run trained on."""
        return total(self.steps, "tokens/step")

    @property
    def dropped(self) -> float:
        """Tokens that the objective dropped."""
        return total(self.steps, "tokens/dropped")

    @property
    def spurious(self) -> Spurious | None:
        """Counts of spurious tokens; None if the task does not know them."""
        steps = self.steps
        if not any(line.get("spurious/tokens") is not None for line in steps):
            return None
        tenths = self.tenths()
        counts = [(total(part, "spurious/tokens"), total(part, "tokens/step")) for part in tenths]
        return Spurious(
            total(steps, "spurious/tokens"),
            total(steps, "spurious/caught"),
            total(steps, "spurious/dropped"),
            (counts[0], counts[-1]),
            tuple(found / max(tokens, 1) for found, tokens in counts),
        )


@dataclass(frozen=True)
class RunComparison:
    """Two runs side by side.

    Attributes:
        a: one run.
        b: the other one.
        settings: (setting, value in a, value in b) of settings that differ, objective aside.
    """

    a: Outcome
    b: Outcome
    settings: tuple[tuple[str, Any, Any], ...]

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, text of a, text of b) of each number that one of the runs has."""
        a, b = measures(self.a), measures(self.b)
        return [(name, a.get(name, "–"), b.get(name, "–")) for name in dict.fromkeys([*a, *b])]

    def __str__(self) -> str:
        rows = [("", self.a.name, self.b.name), *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def compare_runs(a: Path | str, b: Path | str) -> RunComparison:
    """Compare two finished or unfinished runs by their metrics.

    Args:
        a: folder of a run.
        b: folder of another run.

    Raises:
        ConfigError: a folder has no run, or no finished step.
    """
    first, second = Outcome.read(a), Outcome.read(b)
    changes = difference(settings_of(first.config), settings_of(second.config))
    own = [each for each in changes if each[0].partition(".")[0] not in ("objective", "preset")]
    return RunComparison(first, second, tuple(own))


def measures(outcome: Outcome) -> dict[str, str]:
    """The numbers of a run as texts, by their names on the screen."""
    found: dict[str, str] = {}
    for when, (value, width) in zip(("before", "after"), outcome.accuracies(), strict=False):
        low, high = max(value - width, 0), min(value + width, 1)
        found[f"held-out accuracy {when}"] = f"{value:.3f}  [{low:.3f}, {high:.3f}]"
    for name, key in (("reward", "reward/mean"), ("entropy", "policy/entropy")):
        first, last = outcome.ends(key)
        if first is not None and last is not None:
            found[f"{name}, first → last tenth"] = f"{first:.3f} → {last:.3f}"
    found["tokens left out"] = share(outcome.dropped, outcome.tokens)
    if spurious := outcome.spurious:
        (first, before), (last, after) = spurious.ends
        found["spurious tokens"] = share(spurious.tokens, outcome.tokens)
        found["spurious, first tenth"] = share(first, before)
        found["spurious, last tenth"] = share(last, after)
        if spurious.dropped:
            found["precision of the rule"] = share(spurious.caught, spurious.dropped)
            found["recall of the rule"] = share(spurious.caught, spurious.tokens)
    return found


def share(part: float, whole: float) -> str:
    """A count and its share of another: `358 (0.092%)`."""
    if not part or not whole:
        return f"{part:,.0f}"
    percent = 100 * part / whole
    digits = 1 if 99 < percent < 100 else max(0, min(1 - math.floor(math.log10(percent)), 4))
    return f"{part:,.0f} ({percent:.{digits}f}%)"


def total(lines: Sequence[Line], name: str) -> float:
    """The sum of a metric over lines; lines without it count 0."""
    return math.fsum(line.get(name) or 0.0 for line in lines)


def mean(lines: Sequence[Line], name: str) -> float | None:
    """The mean of a metric over the lines that have it; None if no line has."""
    values = [line[name] for line in lines if line.get(name) is not None]
    return math.fsum(values) / len(values) if values else None


def _error(line: Line) -> float:
    errors = [line.get(f"eval/accuracy_se_{over}") for over in ("samples", "problems")]
    known = [error for error in errors if error is not None and not math.isnan(error)]
    return known[0] if known else 0.0
