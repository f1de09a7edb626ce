"""Sample responses to problems and grade them. Stored responses are not sampled again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from rlobj.data import Problem
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.records import GradedBenchmark, ResponseRecord
from rlobj.evaluation.samples import Key, Samples
from rlobj.rewards import Graded, Grader
from rlobj.samplers import Sample, Sampler, SamplingSettings, derive_seed

STORE_SECONDS = 2.0
"""Time between two writes of responses."""


def sample_seed(seed: int, benchmark: str, problem: str, sample: int) -> int:
    """The seed of one response. It does not depend on what was sampled before."""
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
    callback: EvaluationCallback | None = None,
) -> GradedBenchmark:
    """`count` graded responses for each problem.

    Args:
        sampler: samples responses.
        encode: problem -> prompt token ids.
        problems: the problems; their ids are unique.
        grader: an open grader.
        settings: sampling parameters.
        count: responses for each problem.
        seed: of all of them; see `sample_seed`.
        benchmark: name of these problems in `samples`.
        samples: what is stored already, and takes what is new; None = nothing.
        block: responses sampled and graded at a time; they are stored as they come.
        callback: receives `sampled` and `graded`.
    """
    samples = samples if samples is not None else Samples()
    tally = _Tally(callback, benchmark, len(problems) * count, samples)
    _grade_stored(grader, problems, benchmark, samples, block, tally)
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
        with _Store(samples, keys, seeds, tally) as store:
            groups = sampler.sample(
                prompts, count=1, settings=settings, seeds=seeds, done=store.take
            )
            for index, group in enumerate(groups):  # a sampler may not call `done`
                store.take(index, group)
        _grade(grader, part, samples, tally)
    return samples.graded(benchmark, problems)


def grade_all(
    grader: Grader,
    problems: Sequence[Problem],
    benchmark: str,
    samples: Samples,
    *,
    block: int = 1024,
    callback: EvaluationCallback | None = None,
) -> None:
    """Grade the stored responses of a benchmark that have no grade yet."""
    ids = {problem.id for problem in problems}
    total = sum(key[0] == benchmark and key[1] in ids for key in samples.responses)
    tally = _Tally(callback, benchmark, total, samples)
    _grade_stored(grader, problems, benchmark, samples, block, tally)


class _Tally:
    """Counts what is graded, for the callback."""

    def __init__(
        self, callback: EvaluationCallback | None, benchmark: str, total: int, samples: Samples
    ) -> None:
        self._callback = callback or EvaluationCallback()
        self._benchmark, self._total = benchmark, total
        self._done = sum(name == benchmark for name, _, _ in samples.grades)
        self._right = self._decided = 0
        self.graded({})

    def sampled(self, responses: int) -> None:
        self._callback.sampled(self._benchmark, responses)

    def graded(self, grades: Mapping[Key, Graded]) -> None:
        self._done += len(grades)
        self._right += sum(grade.correct is True for grade in grades.values())
        self._decided += sum(grade.correct is not None for grade in grades.values())
        accuracy = self._right / self._decided if self._decided else math.nan
        self._callback.graded(self._benchmark, self._done, self._total, accuracy)


class _Store:
    """Stores responses every few seconds while they are sampled, and the rest at the end."""

    def __init__(
        self, samples: Samples, keys: Sequence[Key], seeds: Sequence[int], tally: _Tally
    ) -> None:
        self._samples, self._keys, self._seeds, self._tally = samples, keys, seeds, tally
        self._waiting: dict[Key, ResponseRecord] = {}
        self._written = time.monotonic()

    def __enter__(self) -> _Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()

    def take(self, index: int, group: Sequence[Sample]) -> None:
        """Take the response to a prompt; a second time changes nothing."""
        key = self._keys[index]
        if key in self._samples.responses or key in self._waiting:
            return
        (sample,) = group
        self._waiting[key] = ResponseRecord(
            key[2], self._seeds[index], sample.text, len(sample.tokens), sample.finish
        )
        if time.monotonic() - self._written > STORE_SECONDS:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._samples.add(self._waiting)
            self._tally.sampled(len(self._waiting))
        self._waiting, self._written = {}, time.monotonic()


def _grade_stored(
    grader: Grader,
    problems: Sequence[Problem],
    benchmark: str,
    samples: Samples,
    block: int,
    tally: _Tally,
) -> None:
    by_id = {problem.id: problem for problem in problems}
    waiting = [
        (by_id[key[1]], key)
        for key in samples.responses
        if key[0] == benchmark and key[1] in by_id and key not in samples.grades
    ]
    for start in range(0, len(waiting), block):
        _grade(grader, waiting[start : start + block], samples, tally)


def _grade(
    grader: Grader, part: Sequence[tuple[Problem, Key]], samples: Samples, tally: _Tally
) -> None:
    texts = [samples.responses[key].text for _, key in part]
    graded = grader.score(texts, [problem for problem, _ in part])
    grades = {key: grade for (_, key), grade in zip(part, graded, strict=True)}
    samples.grade(grades)
    tally.graded(grades)
