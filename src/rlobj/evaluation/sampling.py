"""Sample responses to problems and grade them; what is there already is not made again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rlobj.data import Problem
from rlobj.evaluation.records import GradedBenchmark, ResponseRecord
from rlobj.evaluation.samples import Key, Samples
from rlobj.rewards import Graded, Grader
from rlobj.samplers import Sample, Sampler, SamplingSettings, derive_seed

__all__ = ["grade_all", "sample_and_grade", "sample_seed"]

Told = Callable[[Mapping[Key, Graded]], None]
"""Told the grades of each block as it is done."""

KEEP_SECONDS = 2.0
"""Between two writes of responses."""


def sample_seed(seed: int, benchmark: str, problem: str, sample: int) -> int:
    """The seed of one response: it depends on nothing that happens before it is drawn."""
    return derive_seed(seed, benchmark, problem, sample)


def sample_and_grade(
    sampler: Sampler,
    encode: Callable[[Problem], list[int]],
    problems: Sequence[Problem],
    grader: Grader,
    settings: SamplingSettings,
    *,
    count: int,
    seed: int,
    benchmark: str = "evaluation",
    samples: Samples | None = None,
    block: int = 1024,
    progress: Told | None = None,
    drawn: Callable[[int], None] | None = None,
) -> GradedBenchmark:
    """`count` graded responses for each problem.

    Args:
        sampler: draws responses.
        encode: problem -> prompt token ids.
        problems: what is asked; their ids are unique.
        grader: an open grader.
        settings: sampling parameters.
        count: responses per problem.
        seed: of all of them; see `sample_seed`.
        benchmark: the name of these problems among those in `samples`.
        samples: what exists already and takes what is made; None = nothing.
        block: responses sampled and graded at a time; they are kept as they are drawn.
        progress: told the grades of each block.
        drawn: told how many more responses are kept.
    """
    samples = samples if samples is not None else Samples()
    grade_all(grader, problems, benchmark, samples, block=block, progress=progress)
    missing = [
        (problem, (benchmark, problem.id, sample))
        for problem in problems
        for sample in range(count)
        if (benchmark, problem.id, sample) not in samples.responses
    ]
    for start in range(0, len(missing), block):
        part = missing[start : start + block]
        keys = [key for _, key in part]
        seeds = [sample_seed(seed, *key) for key in keys]
        prompts = [encode(problem) for problem, _ in part]
        with _Keeper(samples, keys, seeds, drawn) as keeper:
            groups = sampler.sample(
                prompts, count=1, settings=settings, seeds=seeds, done=keeper.take
            )
            for place, group in enumerate(groups):  # engines that tell nothing meanwhile
                keeper.take(place, group)
        _grade(grader, part, samples, progress)
    return samples.evaluation(benchmark, problems)


class _Keeper:
    """Keeps responses as they are drawn, some at a time; all of them when it ends, however."""

    def __init__(
        self,
        samples: Samples,
        keys: Sequence[Key],
        seeds: Sequence[int],
        drawn: Callable[[int], None] | None,
    ) -> None:
        self._samples, self._keys, self._seeds, self._drawn = samples, keys, seeds, drawn
        self._waiting: dict[Key, ResponseRecord] = {}
        self._kept = time.monotonic()

    def __enter__(self) -> _Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self._keep()

    def take(self, place: int, drawn: Sequence[Sample]) -> None:
        """The response to the prompt at a place; a second time changes nothing."""
        key = self._keys[place]
        if key in self._samples.responses or key in self._waiting:
            return
        (sample,) = drawn
        self._waiting[key] = ResponseRecord(
            key[2], self._seeds[place], sample.text, len(sample.tokens), sample.finish
        )
        if time.monotonic() - self._kept > KEEP_SECONDS:
            self._keep()

    def _keep(self) -> None:
        if self._waiting:
            self._samples.add(self._waiting)
            if self._drawn is not None:
                self._drawn(len(self._waiting))
        self._waiting, self._kept = {}, time.monotonic()


def grade_all(
    grader: Grader,
    problems: Sequence[Problem],
    benchmark: str,
    samples: Samples,
    *,
    block: int = 1024,
    progress: Told | None = None,
) -> None:
    """Grade the responses of a benchmark that have no grade yet."""
    by_id = {problem.id: problem for problem in problems}
    waiting = [
        (by_id[key[1]], key)
        for key in samples.responses
        if key[0] == benchmark and key[1] in by_id and key not in samples.grades
    ]
    for start in range(0, len(waiting), block):
        _grade(grader, waiting[start : start + block], samples, progress)


def _grade(
    grader: Grader,
    part: Sequence[tuple[Problem, Key]],
    samples: Samples,
    progress: Told | None,
) -> None:
    texts = [samples.responses[key].text for _, key in part]
    graded = grader.score(texts, [problem for problem, _ in part])
    grades = {key: grade for (_, key), grade in zip(part, graded, strict=True)}
    samples.grade(grades)
    if progress is not None:
        progress(grades)
