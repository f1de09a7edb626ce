"""Sample responses to problems and grade them; what is there already is not made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlobj.data import Problem
from rlobj.evaluation.records import Evaluation, Response
from rlobj.evaluation.samples import Key, Samples
from rlobj.rewards import Graded, Grader
from rlobj.samplers import Sampler, SamplingSettings, derive_seed

__all__ = ["evaluate", "grade_all", "sample_seed"]

Told = Callable[[Mapping[Key, Graded]], None]
"""Told the grades of each block as it is done."""


def sample_seed(seed: int, benchmark: str, problem: str, sample: int) -> int:
    """The seed of one response: it depends on nothing that happens before it is drawn."""
    return derive_seed(seed, benchmark, problem, sample)


def evaluate(
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
) -> Evaluation:
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
        block: responses sampled, kept and graded at a time.
        progress: told the grades of each block.
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
        seeds = [sample_seed(seed, *key) for _, key in part]
        prompts = [encode(problem) for problem, _ in part]
        groups = sampler.sample(prompts, count=1, settings=settings, seeds=seeds)
        made: dict[Key, Response] = {}
        for (_, key), own, (drawn,) in zip(part, seeds, groups, strict=True):
            made[key] = Response(key[2], own, drawn.text, len(drawn.token_ids), drawn.finish)
        samples.add(made)
        _grade(grader, part, samples, progress)
    return samples.evaluation(benchmark, problems)


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
