"""Outcome: what came out of a run, in numbers.

Its accuracy or reward, its entropy, its calls of tools, and its dropped and spurious tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlobj.base.errors import ConfigError
from rlobj.insight.numbers import Z95, Line, mean, percent, share, total
from rlobj.runs.configuration import read_settings
from rlobj.runs.metrics import ACCURACY, measure_of, read_metrics


@dataclass(frozen=True)
class Outcome:
    """What came out of a run.

    Attributes:
        lines: metrics.jsonl.
    """

    lines: Sequence[Line]

    @classmethod
    def read(cls, run: Path | str) -> Outcome:
        """Read a run.

        Raises:
            ConfigError: no run there, or a run without a finished step.
        """
        read_settings(Path(run))  # an error if it is no run
        outcome = cls(read_metrics(Path(run)))
        if not outcome.steps:
            raise ConfigError(f"{run} has no finished step yet")
        return outcome

    @property
    def steps(self) -> list[Line]:
        """The lines of finished steps, without the evaluation before the first."""
        return [line for line in self.lines if "reward/mean" in line]

    @property
    def window(self) -> int:
        """The number of steps at the beginning and at the end that are compared."""
        return max(1, min(10, len(self.steps) // 4))

    def measures(self) -> dict[str, str]:
        """The numbers of the run as texts, by their names on the screen.

        Held-out numbers have their 95% interval for other samples on the same problems; with one
        sample per problem, for other problems.
        """
        texts: dict[str, str] = {}
        measure = measure_of(self.lines)
        measured = [line for line in self.lines if line.get(measure.key) is not None]
        for when, line in zip(("before", "after"), (*measured[:1], *measured[-1:]), strict=False):
            value, width = line[measure.key], Z95 * measure.error(line)
            low, high = value - width, value + width
            if measure is ACCURACY:
                low, high = max(low, 0), min(high, 1)
            value, low, high = map(measure.text, (value, low, high))
            texts[f"{measure.name} {when}"] = f"{value}  [{low}, {high}]"
        if measured and measured[-1]["step"] < self.steps[-1]["step"]:
            late = f"not measured after step {measured[-1]['step']}"
            name = f"{measure.name} after"
            texts[name] = late if len(measured) == 1 else f"{texts[name]}, {late}"
        if measured and (error := measure.error(last := measured[-1])):
            sampled = error == last.get(f"{measure.key}_se_samples")
            what = "other samples of" if sampled else "problems like"
            count = f"{last['eval/problems']:,.0f} " if "eval/problems" in last else ""
            texts["their 95% intervals"] = f"for {what} these {count}problems"
        steps, window = self.steps, self.window
        first, last = steps[:window], steps[-window:]
        when = f"first/last {window} steps" if window > 1 else "first/last step"
        for name, key in (("reward", "reward/mean"), ("entropy", "policy/entropy")):
            ends = [mean(part, key) for part in (first, last)]
            if None not in ends:
                texts[f"{name}, {when}"] = "{:.3f} → {:.3f}".format(*ends)
        if total(steps, "tools/calls"):
            texts |= {f"{name}, {when}": text for name, text in _calls(first, last).items()}
        before, after = (mean(part, "turns/at_broken") or 0.0 for part in (first, last))
        if before or after:
            failed = f"{before:.3f} → {after:.3f} of the responses"
            texts[f"environment failed, {when}"] = failed
        tokens = total(steps, "tokens/step")
        texts["tokens dropped"] = share(total(steps, "tokens/dropped"), tokens)
        if any(line.get("spurious/tokens") is not None for line in steps):
            names = ("spurious/tokens", "spurious/caught", "spurious/dropped")
            spurious, caught, dropped = (total(steps, name) for name in names)
            texts["spurious tokens"] = share(spurious, tokens)
            texts[f"spurious, {when}"] = _trend(first, last)
            if dropped:
                texts["precision of the rule"] = f"{share(caught, dropped)} of {dropped:,.0f}"
                texts["recall of the rule"] = f"{share(caught, spurious)} of {spurious:,.0f}"
        return texts


def _calls(first: Sequence[Line], last: Sequence[Line]) -> dict[str, str]:
    """Calls of tools in two parts of a run, and the accuracy of responses with and without one."""
    parts = first, last
    counts = [(total(part, "tools/calls"), total(part, "response/count")) for part in parts]
    failed = [total(part, "tools/errors") / max(total(part, "tools/calls"), 1) for part in parts]
    ends = {
        "calls per response": [calls / responses for calls, responses in counts],
        "calls that failed": failed if any(failed) else [None, None],
        "accuracy with a call": [mean(part, "tools/accuracy_with") for part in parts],
        "accuracy without": [mean(part, "tools/accuracy_without") for part in parts],
    }
    return {
        name: " → ".join("none" if value is None else f"{value:.3f}" for value in values)
        for name, values in ends.items()
        if values != [None, None]
    }


def _trend(first: Sequence[Line], last: Sequence[Line]) -> str:
    """The share of spurious tokens in two parts of a run, and whether it changed beyond noise."""
    spurious = [total(part, "spurious/tokens") for part in (first, last)]
    tokens = [max(total(part, "tokens/step"), 1) for part in (first, last)]
    before, after = (a / b for a, b in zip(spurious, tokens, strict=True))
    noise = 2 * math.hypot(*(math.sqrt(a) / b for a, b in zip(spurious, tokens, strict=True)))
    word = "shrank" if after < before - noise else "grew" if after > before + noise else ""
    return f"{percent(before)} → {percent(after)}, {word or 'hardly changed'}"
