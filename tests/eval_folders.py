"""A folder of an evaluation, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlobj.data import Problem
from rlobj.evaluation import ResponseRecord, Samples


def ungraded_folder(path: Path, answers: Mapping[str, tuple[str, Sequence[str]]]) -> Path:
    """Write responses to problems, without grades, as an evaluation that was killed leaves them.

    Args:
        path: the folder.
        answers: problem id -> (gold answer, responses).
    """
    samples = Samples(path)
    problems = [Problem(name, f"{name}?", gold) for name, (gold, _) in answers.items()]
    responses = {
        ("sums", name, i): ResponseRecord(i, 0, text, len(text), "stop")
        for name, (_, said) in answers.items()
        for i, text in enumerate(said)
    }
    with samples.locked():
        samples.write_problems({"sums": problems})
        samples.add(responses)
        settings = {"problems": len(problems), "samples": 1, "reward": {"kind": "exact"}}
        samples.write_settings(
            {"model": {"name": "m"}, "engine": {"name": "e"}, "benchmarks": {"sums": settings}}
        )
    return path
