"""The grades of an evaluation before and after its responses were graded again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import Any

from rlobj.base.errors import counted
from rlobj.evaluation.graded import GradedBenchmark
from rlobj.evaluation.report.numbers import UNKNOWN, number, percent
from rlobj.evaluation.summary import summarise
from rlobj.reporting import visible
from rlobj.reporting.markdown import markdown_table
from rlobj.rewards import Graded
from rlobj.rewards.kinds import WORDS
from rlobj.runs.evaluation_samples import Key

SHOWN = 20
"""Changed grades in a table."""
LONGEST = 60
"""Characters of an answer in a table."""
VERDICTS = ("right to right", "right to wrong", "wrong to right", "wrong to wrong")


@dataclass(frozen=True)
class GradeChange:
    """A response that got another verdict when it was graded again."""

    key: Key
    gold: str
    before: Graded
    after: Graded


@dataclass(frozen=True)
class RegradedBenchmark:
    """The numbers of one benchmark before and after its responses were graded again.

    Attributes:
        reward_before: settings of the reward before; reward_after: settings of the reward now.
        before: avg@n in [0, 1], an undecided response being wrong; or the mean reward, if one of
            the rewards does not say which responses are right. after: the same now.
        either: avg@n if a response counts as right that was right before or is right now; None
            beside mean rewards.
        counts: "right to wrong" -> number of responses with these verdicts; none beside mean
            rewards.
    """

    reward_before: Mapping[str, Any]
    reward_after: Mapping[str, Any]
    before: float
    after: float
    either: float | None
    counts: Mapping[str, int]

    @classmethod
    def of(
        cls,
        before: GradedBenchmark,
        after: GradedBenchmark,
        reward_before: Mapping[str, Any],
        reward_after: Mapping[str, Any],
    ) -> RegradedBenchmark:
        """Compare two grades of each of the same responses."""
        alike = before.says_right and after.says_right
        means = [summarise(side, says_right=alike).estimate.mean for side in (before, after)]
        pairs = [
            list(zip(old.grades, new.grades, strict=True))
            for old, new in zip(before.problems, after.problems, strict=True)
        ]
        either, counts = None, dict[str, int]()
        if alike:
            right = [
                [True in (old.correct, new.correct) for old, new in grades] for grades in pairs
            ]
            either = fmean(map(fmean, right))
            verdicts = Counter(
                f"{WORDS[old.correct]} to {WORDS[new.correct]}" for old, new in chain(*pairs)
            )
            counts = {**dict.fromkeys(VERDICTS, 0), **verdicts}
        return cls(reward_before, reward_after, means[0], means[1], either, counts)


@dataclass(frozen=True)
class Regrading:
    """What changed when an evaluation was graded again. A notebook shows it as a table.

    Attributes:
        responses: number of responses that were graded.
        benchmarks: by name, of the responses that had a grade before.
        changes: the responses whose verdict changed.
    """

    responses: int
    benchmarks: Mapping[str, RegradedBenchmark]
    changes: tuple[GradeChange, ...] = field(repr=False)

    def to_markdown(self) -> str:
        """The numbers before and after, and the first changes."""
        columns = [_measures(benchmark) for benchmark in self.benchmarks.values()]
        titles = dict.fromkeys(chain.from_iterable(columns))
        rows = [[title, *(column.get(title, "") for column in columns)] for title in titles]
        parts = [
            f"{counted(self.responses, 'response')} graded again, "
            f"{counted(len(self.changes), 'grade')} changed",
            markdown_table(["", *self.benchmarks], rows),
            "Before and after: percent of right responses, of which undecided ones are none; or "
            "mean rewards, if a reward does not say what is right.",
        ]
        if shown := self.changes[:SHOWN]:
            parts.append(f"Grades that changed ({len(shown):,} of {len(self.changes):,}):")
            header = ["problem", "sample", "gold", "answer", "before", "after"]
            parts.append(markdown_table(header, list(map(_row, shown))))
        return "\n\n".join(parts) + "\n"

    _repr_markdown_ = to_markdown


def _measures(benchmark: RegradedBenchmark) -> dict[str, str]:
    """The numbers of a benchmark as text, shares in percent, by name."""
    before, after, shares = benchmark.before, benchmark.after, benchmark.either is not None
    measures = {
        "reward before": benchmark.reward_before["kind"],
        "reward after": benchmark.reward_after["kind"],
        "before": number(before, shares),
        "after": number(after, shares),
        "difference": number(after - before, shares, "+"),
    }
    if benchmark.either is not None:
        measures["right before or after"] = percent(benchmark.either)
    return measures | {title: f"{count:,}" for title, count in benchmark.counts.items()}


def _row(change: GradeChange) -> list[str]:
    benchmark, problem, sample = change.key
    answer = change.after.answer or change.before.answer or UNKNOWN
    verdicts = (f"{grade.verdict} ({grade.reason})" for grade in (change.before, change.after))
    texts = (visible(text, LONGEST) for text in (change.gold, answer, *verdicts))
    return [f"{benchmark} {problem}", str(sample), *texts]
