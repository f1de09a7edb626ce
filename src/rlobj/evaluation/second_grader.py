"""Grade stored responses with math-verify too, beside the verdicts of the evaluation.

This changes nothing in the folder; the verdicts are written to DIR/regraded/math-verify.json.
"""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from rlobj.answers.worker_process import WorkerProcess
from rlobj.base.errors import ConfigError
from rlobj.data import Problem
from rlobj.evaluation import math_verify_worker
from rlobj.evaluation.report import percent, percent_signed
from rlobj.evaluation.result import EvaluationCallback
from rlobj.evaluation.samples import Samples
from rlobj.installation import installed_version, session
from rlobj.reporting.figures import markdown_table
from rlobj.rewards.kinds import WORDS, best

GRADER = "math-verify"
SECONDS = 60.0
"""Default time limit for one response; longer than those that math-verify has itself."""
BLOCK = 256
SHOWN = 20
"""Differing verdicts in a table."""

Decision = tuple[bool | None, str]
Question = tuple[Problem, str]
"""A problem and a response."""


@dataclass(frozen=True)
class SecondVerdict:
    """Both verdicts on one response; None = undecided.

    Attributes:
        benchmark: its name.
        problem: id of the problem.
        sample: index among the problem's responses.
        gold: the gold answer.
        answer: the final answer that rlobj found.
        ours: the verdict of the evaluation.
        theirs: the verdict of the second grader.
        reason: why the second grader is undecided.
    """

    benchmark: str
    problem: str
    sample: int
    gold: str
    answer: str | None
    ours: bool | None
    theirs: bool | None
    reason: str


@dataclass(frozen=True)
class SecondGrading:
    """The verdicts of a second grader. A notebook shows it as a table.

    Attributes:
        versions: of its packages.
        verdicts: one for each graded response.
        path: the file that holds all of this.
    """

    versions: Mapping[str, str | None]
    verdicts: tuple[SecondVerdict, ...] = field(repr=False)
    path: Path

    @property
    def different(self) -> list[SecondVerdict]:
        """The verdicts that differ."""
        return [each for each in self.verdicts if each.ours != each.theirs]

    @property
    def benchmarks(self) -> dict[str, dict[str, Any]]:
        """Benchmark -> accuracies in [0, 1] and numbers of responses.

        `ours`, `theirs` and `either` are avg@n, an undecided response being wrong; `either` counts
        a response as right if any of both graders does. `only_ours` and `only_theirs` are numbers
        of responses that only this grader finds right, and `undecided` is that of the second one.
        """
        found = {}
        for name in dict.fromkeys(each.benchmark for each in self.verdicts):
            own = [each for each in self.verdicts if each.benchmark == name]
            found[name] = {
                "responses": len(own),
                "ours": _accuracy(own, lambda each: each.ours is True),
                "theirs": _accuracy(own, lambda each: each.theirs is True),
                "either": _accuracy(own, lambda each: True in (each.ours, each.theirs)),
                "only_ours": sum(each.ours is True and not each.theirs for each in own),
                "only_theirs": sum(each.theirs is True and not each.ours for each in own),
                "undecided": sum(each.theirs is None for each in own),
            }
        return found

    def to_markdown(self, limit: int | None = SHOWN) -> str:
        """The accuracies, and the verdicts that differ.

        Args:
            limit: number of differing verdicts that are listed; None = all.
        """
        benchmarks = self.benchmarks
        lines: dict[str, Callable[[dict[str, Any]], str]] = {
            "rlobj, % right": lambda each: percent(each["ours"]),
            f"{GRADER}, % right": lambda each: percent(each["theirs"]),
            "difference": lambda each: percent_signed(each["theirs"] - each["ours"]),
            "either, % right": lambda each: percent(each["either"]),
            "responses": lambda each: f"{each['responses']:,}",
            "right by rlobj only": lambda each: f"{each['only_ours']:,}",
            f"right by {GRADER} only": lambda each: f"{each['only_theirs']:,}",
            f"undecided by {GRADER}": lambda each: f"{each['undecided']:,}",
        }
        rows = [[title, *map(write, benchmarks.values())] for title, write in lines.items()]
        note = (
            "An undecided response counts as wrong. The difference is in points. "
            '"either": a response is right if one of both graders finds it right.'
        )
        parts = [markdown_table(["", *benchmarks], rows), note]
        different = self.different[:limit]
        if different:
            parts.append(f"Verdicts that differ ({len(different):,} of {len(self.different):,}):")
            header = ["problem", "sample", "gold", "answer", "rlobj", GRADER]
            parts.append(markdown_table(header, list(map(_row, different))))
        return "\n\n".join(parts) + "\n"

    _repr_markdown_ = to_markdown

    def to_dict(self) -> dict[str, Any]:
        """Everything, as in the file."""
        return {
            "grader": GRADER,
            **session("graded"),
            "versions": dict(self.versions),
            "benchmarks": self.benchmarks,
            "verdicts": [asdict(each) for each in self.verdicts],
        }


def _accuracy(verdicts: Sequence[SecondVerdict], right: Callable[[SecondVerdict], bool]) -> float:
    """The mean over problems of the share of right responses."""
    problems: dict[str, list[bool]] = {}
    for each in verdicts:
        problems.setdefault(each.problem, []).append(right(each))
    return fmean(map(fmean, problems.values()))


def _row(each: SecondVerdict) -> list[str]:
    theirs = WORDS[each.theirs] + (f": {each.reason}" if each.reason else "")
    texts = (each.gold, each.answer or "–", WORDS[each.ours], theirs)
    where = (f"{each.benchmark} {each.problem}", str(each.sample))
    return [*where, *(text[:60] for text in texts)]


def regrade_with(
    path: Path | str,
    grader: str,
    *,
    deadline: float | None = None,
    callback: EvaluationCallback | None = None,
) -> SecondGrading:
    """Grade the graded responses of an evaluation with a second grader, and compare the verdicts.

    Args:
        path: folder of the evaluation. Only its subfolder `regraded` is written.
        grader: "math-verify".
        deadline: seconds for one response, then it is undecided; None = 60.
        callback: receives `graded`.

    Raises:
        ConfigError: no graded evaluation there, or another grader.
        RunError: its process does not start, or the disk refused.
    """
    if grader != GRADER:
        raise ConfigError(f"grader={grader}: expected {GRADER}")
    callback, samples = callback or EvaluationCallback(), Samples.open(path)
    benchmarks = {name: samples.graded(name, each) for name, each in samples.problems().items()}
    questions = [
        (name, problem, response, grade)
        for name, benchmark in benchmarks.items()
        for problem in benchmark.problems
        for response, grade in zip(problem.responses, problem.grades, strict=True)
    ]
    if not questions:
        raise ConfigError(f"{path} has no graded responses yet")
    if not all(each.says_right for each in benchmarks.values()):
        raise ConfigError(
            f"{path}: the reward does not say which responses are right, so there is no verdict to "
            f"compare. Grade them with one that does: rlobj eval regrade {path} --reward math"
        )
    verdicts = []
    with MathVerify(deadline or SECONDS) as second:
        for start in range(0, len(questions), BLOCK):
            part = questions[start : start + BLOCK]
            found = second.grade([(each.problem, response.text) for _, each, response, _ in part])
            verdicts += [
                SecondVerdict(
                    name,
                    each.problem.id,
                    response.sample,
                    each.problem.answer,
                    grade.answer,
                    grade.correct,
                    *decision,
                )
                for (name, each, response, grade), decision in zip(part, found, strict=True)
            ]
            right = fmean(each.theirs is True for each in verdicts)
            callback.graded(grader, len(verdicts), len(questions), right)
    folder = Path(path) / "regraded"
    folder.mkdir(exist_ok=True)
    versions = {grader: installed_version(grader)}
    result = SecondGrading(versions, tuple(verdicts), folder / f"{grader}.json")
    text = json.dumps(result.to_dict(), indent=1, ensure_ascii=False) + "\n"
    samples.write(str(result.path.relative_to(path)), text)
    return result


class MathVerify:
    """math-verify in processes that are killed at a deadline.

    Use it as a context manager.

    Args:
        deadline: seconds for one response.
        workers: number of processes; None = one per core, at most 8.
    """

    def __init__(self, deadline: float = SECONDS, workers: int | None = None) -> None:
        self._workers = [
            WorkerProcess(deadline, 2**42, 10_000, str(math_verify_worker.__file__))
            for _ in range(workers or min(8, os.cpu_count() or 1))
        ]
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()

    def grade(self, questions: Sequence[Question]) -> list[Decision]:
        """Return (verdict, reason) of each response; any of several gold answers is right.

        Raises:
            RunError: the process does not start.
        """
        with ThreadPoolExecutor(len(self._workers)) as threads:
            return list(threads.map(self._grade, questions))

    def _grade(self, question: Question) -> Decision:
        problem, response = question
        worker = self._idle.get()
        try:
            found = [worker.ask(response, gold) for gold in problem.golds]
        finally:
            self._idle.put(worker)
        return best(found, itemgetter(0))
