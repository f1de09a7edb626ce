"""Outcome: what came out of a run, in numbers.

Its accuracy or reward, its entropy, its calls of tools, and its dropped and spurious tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlobj.base.errors import ConfigError
from rlobj.insight.numbers import Z95, Line, mean, percent, share, total
from rlobj.insight.opening import open_run
from rlobj.runs.metrics import ACCURACY, measure_of


def _value(lines: Sequence[Line], metric: str, whole: str = "") -> float | None:
    """The mean of a metric, or its sum divided by that of another one."""
    if not whole:
        return mean(lines, metric)
    return total(lines, metric) / total(lines, whole) if total(lines, whole) else None


_ENDS: dict[str, tuple[str, ...]] = {
    "reward": ("reward/mean",),
    "entropy": ("policy/entropy",),
    "calls per response": ("tools/calls", "response/count"),
    "calls that failed": ("tools/errors", "tools/calls"),
    "accuracy with a call": ("tools/accuracy_with",),
    "accuracy without": ("tools/accuracy_without",),
    "responses whose environment failed": ("turns/at_broken",),
}
"""What is compared between the first and the last steps."""
_OF_CALLS = ("calls per response", "calls that failed", "accuracy with a call", "accuracy without")
"""Left out where there was no call."""
_RARE = ("calls that failed", "responses whose environment failed")
"""Left out where they are 0 at both ends."""


@dataclass(frozen=True)
class Outcome:
    """What came out of a run.

    Attributes:
        lines: metrics.jsonl.
    """

    lines: Sequence[Line]

    @classmethod
    def read(cls, run: Path | str) -> "Outcome":
        """Read a run.

        Raises:
            ConfigError: no run there, or a run without a finished step.
        """
        outcome = cls(open_run(run).lines)
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

    def measures(self, window: int | None = None) -> dict[str, str]:
        """The numbers of the run as texts, by their names on the screen.

        Args:
            window: the number of steps at the beginning and at the end that are compared; None =
                that of this run.
        """
        steps, window = self.steps, window or self.window
        first, last = steps[:window], steps[-window:]
        when = f"first/last {window} steps" if window > 1 else "first/last step"
        texts, absent = self._held_out(), () if total(steps, "tools/calls") else _OF_CALLS
        for name, metrics in _ENDS.items():
            values = (_value(first, *metrics), _value(last, *metrics))
            ends = (None, None) if name in absent else values
            if ends != (None, None) and (any(ends) or name not in _RARE):
                words = ["none" if end is None else f"{end:.3f}" for end in ends]
                texts[f"{name}, {when}"] = " → ".join(words)
        if tokens := total(steps, "tokens/step"):
            texts["tokens dropped"] = share(total(steps, "tokens/dropped"), tokens)
        if any(line.get("spurious/tokens") is not None for line in steps):
            names = ("spurious/tokens", "spurious/caught", "spurious/dropped")
            spurious, caught, dropped = (total(steps, name) for name in names)
            texts["spurious tokens"] = share(spurious, tokens)
            ends = [_value(part, "spurious/tokens", "tokens/step") or 0.0 for part in (first, last)]
            texts[f"spurious, {when}"] = " → ".join(map(percent, ends))
            if dropped:
                texts["precision of the rule"] = f"{share(caught, dropped)} of {dropped:,.0f}"
                texts["recall of the rule"] = f"{share(caught, spurious)} of {spurious:,.0f}"
        return texts

    def _held_out(self) -> dict[str, str]:
        """The held-out numbers before and after.

        They have their 95% interval for other samples on the same problems; with one sample per
        problem, for other problems.
        """
        measure, texts = measure_of(self.lines), dict[str, str]()
        measured = [line for line in self.lines if line.get(measure.key) is not None]
        for when, line in zip(("before", "after"), (*measured[:1], *measured[-1:]), strict=False):
            value, width = line[measure.key], Z95 * measure.error(line)
            low, high = value - width, value + width
            if measure is ACCURACY:
                low, high = max(low, 0), min(high, 1)
            value, low, high = map(measure.text, (value, low, high))
            texts[f"{measure.name} {when}"] = f"{value}  [{low}, {high}]"
        if not measured:
            return texts
        last, end = measured[-1], self.lines[-1]["step"]
        if last["step"] < end:
            late = f"not measured after step {last['step']}"
            name = f"{measure.name} after"
            texts[name] = late if len(measured) == 1 else f"{texts[name]}, {late}"
        if error := measure.error(last):
            sampled = error == last.get(f"{measure.key}_se_samples")
            what = "other samples of" if sampled else "problems like"
            count = f"{last['eval/problems']:,.0f} " if "eval/problems" in last else ""
            texts["their 95% intervals"] = f"for {what} these {count}problems"
        return texts
