"""Sample responses to problems and grade them. Stored responses are not sampled again."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from rlobj.conversations.driving import Conversations
from rlobj.conversations.grading import grades_of
from rlobj.data import Problem
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.graded import GradedBenchmark
from rlobj.rewards import Grader
from rlobj.runs.evaluation_samples import Key, Samples
from rlobj.samplers import Response, Sampler, SamplingSettings, derive_seed
from rlobj.samplers.response import whole


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
    keys: Sequence[Key] | None = None,
    conversations: Conversations | None = None,
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
        keys: the responses that this process samples and grades; None = all.
        conversations: draws responses of several turns; None = a response is one turn.
    """
    samples, callback = samples or Samples(), callback or EvaluationCallback()
    by_id = {problem.id: problem for problem in problems}
    if keys is None:
        keys = open_keys(samples, benchmark, problems, count)
    total = len(keys) + sum(key[0] == benchmark for key in samples.grades)

    def report() -> None:
        """Say how many responses of the benchmark are graded and right."""
        graded = [grade.correct for key, grade in samples.grades.items() if key[0] == benchmark]
        judged = any(verdict is not None for verdict in graded)
        accuracy = fmean(verdict is True for verdict in graded) if judged else math.nan
        callback.graded(benchmark, len(graded), total, accuracy)

    def store(keys: Sequence[Key], index: int, group: Sequence[Response]) -> None:
        """Store the response to a prompt, all rows as one; a second time changes nothing."""
        key, response = keys[index], whole(group)
        if key not in samples.responses:
            no_ids: Any = {"prompt": (), "tokens": (), "logprobs": ()}
            named = {"id": key[2], "seed": derive_seed(seed, *key)}
            samples.add({key: replace(response, **no_ids, **named)})
            callback.sampled(benchmark, 1)

    report()
    for start in range(0, len(keys), block):
        part = keys[start : start + block]
        if missing := [key for key in part if key not in samples.responses]:
            seeds = [derive_seed(seed, *key) for key in missing]
            prompted = [by_id[problem] for _, problem, _ in missing]
            stored = partial(store, missing)
            draw: Any = conversations or sampler
            prompts = prompted if conversations else [encode(problem) for problem in prompted]
            groups = draw.sample(prompts, count=1, settings=settings, seeds=seeds, done=stored)
            for index, group in enumerate(groups):  # a sampler may not call `done`
                stored(index, group)
        responses = [samples.responses[key] for key in part]
        grades = grades_of(grader, responses, [by_id[key[1]] for key in part], "graded")
        samples.grade(dict(zip(part, grades, strict=True)))
        report()
    return GradedBenchmark.of(samples, benchmark, problems)


def open_keys(
    samples: Samples, benchmark: str, problems: Sequence[Problem], count: int
) -> list[Key]:
    """The responses of a benchmark without a grade: first the stored ones, then the others."""
    names = {problem.id for problem in problems}
    stored = [key for key in samples.responses if key[0] == benchmark and key[1] in names]
    wanted = [(benchmark, problem.id, sample) for problem in problems for sample in range(count)]
    return [key for key in dict.fromkeys([*stored, *wanted]) if key not in samples.grades]
