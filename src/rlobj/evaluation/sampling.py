"""Sample responses to problems and grade them. Stored responses are not sampled again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

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
    samples, callback = samples or Samples(), callback or EvaluationCallback()
    total = len(problems) * count
    grading = _Grading(grader, problems, benchmark, samples, total, block, callback)
    grading.grade(key for key in samples.responses if grading.waits(key))
    wanted = [(benchmark, each.id, sample) for each in problems for sample in range(count)]
    missing = [key for key in wanted if key not in samples.responses]
    for start in range(0, len(missing), block):
        keys = missing[start : start + block]
        seeds = [sample_seed(seed, *key) for key in keys]
        prompts = [encode(grading.problems[problem]) for _, problem, _ in keys]
        with _Store(samples, keys, seeds, partial(callback.sampled, benchmark)) as store:
            groups = sampler.sample(
                prompts, count=1, settings=settings, seeds=seeds, done=store.take
            )
            for index, group in enumerate(groups):  # a sampler may not call `done`
                store.take(index, group)
        grading.grade(keys)
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
    called = callback or EvaluationCallback()
    grading = _Grading(grader, problems, benchmark, samples, total, block, called)
    grading.grade(key for key in samples.responses if grading.waits(key))


class _Grading:
    """Grades stored responses of a benchmark, some at a time, and counts them for the callback."""

    def __init__(
        self,
        grader: Grader,
        problems: Sequence[Problem],
        benchmark: str,
        samples: Samples,
        total: int,
        block: int,
        callback: EvaluationCallback,
    ) -> None:
        self.problems = {problem.id: problem for problem in problems}
        self._grader, self._benchmark, self._samples = grader, benchmark, samples
        self._total, self._block, self._callback = total, block, callback
        self._done = sum(name == benchmark for name, _, _ in samples.grades)
        self._right = self._decided = 0
        self._count({})

    def waits(self, key: Key) -> bool:
        """Whether a stored response has no grade yet."""
        own = key[0] == self._benchmark and key[1] in self.problems
        return own and key not in self._samples.grades

    def grade(self, keys: Iterable[Key]) -> None:
        """Grade these responses."""
        waiting = list(keys)
        for start in range(0, len(waiting), self._block):
            part = waiting[start : start + self._block]
            texts = [self._samples.responses[key].text for key in part]
            graded = self._grader.score(texts, [self.problems[name] for _, name, _ in part])
            grades = dict(zip(part, graded, strict=True))
            self._samples.grade(grades)
            self._count(grades)

    def _count(self, grades: Mapping[Key, Graded]) -> None:
        self._done += len(grades)
        self._right += sum(grade.correct is True for grade in grades.values())
        self._decided += sum(grade.correct is not None for grade in grades.values())
        accuracy = self._right / self._decided if self._decided else math.nan
        self._callback.graded(self._benchmark, self._done, self._total, accuracy)


class _Store:
    """Stores responses every few seconds while they are sampled, and the rest at the end."""

    def __init__(
        self,
        samples: Samples,
        keys: Sequence[Key],
        seeds: Sequence[int],
        stored: Callable[[int], None],
    ) -> None:
        self._samples, self._keys, self._seeds, self._stored = samples, keys, seeds, stored
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
            self._stored(len(self._waiting))
        self._waiting, self._written = {}, time.monotonic()
