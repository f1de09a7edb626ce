"""Sample responses to problems, grade them, and say how often they are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlobj.data import Problem
from rlobj.evaluation.statistics import pass_at_k, standard_errors
from rlobj.rewards import Graded, Grader
from rlobj.samplers import Sample, Sampler, SamplingSettings, derive_seed

__all__ = ["Answered", "Evaluation", "evaluate", "problem_seeds"]


@dataclass(frozen=True)
class Answered:
    """A problem with its graded samples."""

    problem: Problem
    samples: tuple[Sample, ...]
    grades: tuple[Graded, ...]

    @property
    def decided(self) -> int:
        """Samples that the grader could decide."""
        return sum(grade.correct is not None for grade in self.grades)

    @property
    def correct(self) -> int:
        """Samples that are right."""
        return sum(grade.correct is True for grade in self.grades)


@dataclass(frozen=True)
class Evaluation:
    """All problems with their samples; undecided samples are counted and in no mean."""

    problems: tuple[Answered, ...]

    @property
    def _decided(self) -> list[Answered]:
        return [each for each in self.problems if each.decided]

    @property
    def accuracy(self) -> float:
        """avg@n: the mean over problems of their share of right samples; nan without any."""
        decided = self._decided
        return sum(e.correct / e.decided for e in decided) / len(decided) if decided else math.nan

    @property
    def standard_errors(self) -> tuple[float, float]:
        """(over samples, over problems); see `statistics.standard_errors`."""
        decided = self._decided
        return standard_errors([e.correct for e in decided], [e.decided for e in decided])

    def pass_at(self, k: int) -> float:
        """Mean unbiased pass@k over the problems with at least k decided samples."""
        able = [e for e in self.problems if e.decided >= k]
        return (
            sum(pass_at_k(e.decided, e.correct, k) for e in able) / len(able) if able else math.nan
        )

    @property
    def undecided(self) -> int:
        """Samples without a verdict."""
        return sum(len(each.grades) - each.decided for each in self.problems)

    @property
    def samples(self) -> int:
        """All samples."""
        return sum(len(each.samples) for each in self.problems)

    @property
    def mean_length(self) -> float:
        """Tokens per response."""
        lengths = [len(s.token_ids) for each in self.problems for s in each.samples]
        return sum(lengths) / len(lengths) if lengths else math.nan

    @property
    def truncated(self) -> float:
        """Share of responses that ran into the length limit."""
        cut = [s.finish == "length" for each in self.problems for s in each.samples]
        return sum(cut) / len(cut) if cut else math.nan

    def metrics(self) -> dict[str, float]:
        """Flat names for metrics.jsonl."""
        sampling, problems = self.standard_errors
        return {
            "eval/accuracy": self.accuracy,
            "eval/accuracy_se_samples": sampling,
            "eval/accuracy_se_problems": problems,
            "eval/undecided": float(self.undecided),
            "eval/length_mean": self.mean_length,
            "eval/truncated": self.truncated,
        }


def problem_seeds(seed: int, count: int) -> list[int]:
    """One seed for each of so many problems."""
    return [derive_seed(seed, "problem", index) for index in range(count)]


def evaluate(
    sampler: Sampler,
    encode: Callable[[Problem], list[int]],
    problems: Sequence[Problem],
    grader: Grader,
    settings: SamplingSettings,
    *,
    count: int,
    seeds: Sequence[int],
    block: int = 256,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """`count` samples for each problem.

    Args:
        sampler: draws responses.
        encode: problem -> prompt token ids.
        problems: what is asked.
        grader: an open grader.
        settings: sampling parameters.
        count: samples per problem.
        seeds: one for each problem; see `problem_seeds`.
        block: problems sampled and graded at a time.
        progress: told the number of problems done after each block.
    """
    answered: list[Answered] = []
    for start in range(0, len(problems), block):
        part = problems[start : start + block]
        prompts = [encode(problem) for problem in part]
        own = seeds[start : start + block]
        groups = sampler.sample(prompts, count=count, settings=settings, seeds=own)
        texts = [sample.text for group in groups for sample in group]
        asked = [problem for problem in part for _ in range(count)]
        grades = grader.score(texts, asked)
        for i, (problem, group) in enumerate(zip(part, groups, strict=True)):
            verdicts = grades[i * count : (i + 1) * count]
            answered.append(Answered(problem, tuple(group), tuple(verdicts)))
        if progress is not None:
            progress(len(answered))
    return Evaluation(tuple(answered))
