"""Sample responses to problems and grade them. Stored responses are not sampled again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from rlobj.data import Problem
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.samples import GradedBenchmark, Key, ResponseRecord, Samples
from rlobj.rewards import Grader
from rlobj.samplers import Sample, Sampler, SamplingSettings, derive_seed


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
        seed: of all of them. The seed of a response depends on it, the benchmark, the problem and
            the number of the sample, and not on what was sampled before.
        benchmark: name of these problems in `samples`.
        samples: what is stored already, and takes what is new; None = nothing.
        block: responses sampled and graded at a time; they are stored as they come.
        callback: receives `sampled` and `graded`.
    """
    samples, callback = samples or Samples(), callback or EvaluationCallback()
    by_id, total = {problem.id: problem for problem in problems}, len(problems) * count
    grade = partial(grade_stored, grader, by_id, benchmark, samples, total, block, callback)
    grade()
    wanted = [(benchmark, each.id, sample) for each in problems for sample in range(count)]
    missing = [key for key in wanted if key not in samples.responses]
    for start in range(0, len(missing), block):
        keys = missing[start : start + block]
        seeds = [derive_seed(seed, *key) for key in keys]
        prompts = [encode(by_id[problem]) for _, problem, _ in keys]
        store = partial(_store, samples, callback, keys, seeds)
        groups = sampler.sample(prompts, count=1, settings=settings, seeds=seeds, done=store)
        for index, group in enumerate(groups):  # a sampler may not call `done`
            store(index, group)
        grade()
    return samples.graded(benchmark, problems)


def _store(
    samples: Samples,
    callback: EvaluationCallback,
    keys: Sequence[Key],
    seeds: Sequence[int],
    index: int,
    group: Sequence[Sample],
) -> None:
    """Store the response to a prompt; a second time changes nothing."""
    key, [sample] = keys[index], group
    if key not in samples.responses:
        length = len(sample.tokens)
        response = ResponseRecord(key[2], seeds[index], sample.text, length, sample.finish)
        samples.add({key: response})
        callback.sampled(key[0], 1)


def grade_stored(
    grader: Grader,
    problems: Mapping[str, Problem],
    benchmark: str,
    samples: Samples,
    total: int,
    block: int,
    callback: EvaluationCallback,
) -> None:
    """Grade the stored responses of a benchmark that have no grade yet.

    Args:
        grader: an open grader.
        problems: the problems of the benchmark, by id.
        benchmark: its name.
        samples: what is stored; takes the grades.
        total: number of responses that there will be, for the callback.
        block: responses graded at a time.
        callback: receives `graded`, first before any is graded.
    """

    def report() -> None:
        graded = [each.correct for key, each in samples.grades.items() if key[0] == benchmark]
        known = any(each is not None for each in graded)
        accuracy = fmean(each is True for each in graded) if known else math.nan
        callback.graded(benchmark, len(graded), total, accuracy)

    own = (key for key in samples.responses if key[0] == benchmark and key[1] in problems)
    waiting = [key for key in own if key not in samples.grades]
    report()
    for start in range(0, len(waiting), block):
        part = waiting[start : start + block]
        texts = [samples.responses[key].text for key in part]
        graded = grader.score(texts, [problems[name] for _, name, _ in part])
        samples.grade(dict(zip(part, graded, strict=True)))
        report()
