"""Responses and grades of an evaluation, in memory or in a folder that survives a kill:

    DIR/settings.json    everything that changes a number, and where the evaluation ran
    DIR/problems.jsonl   the problems
    DIR/samples.jsonl    responses, one a line, appended
    DIR/grades.jsonl     grades, one a line, appended; `rewrite_grades` replaces the file

A line belongs to (benchmark, problem, sample). A last line that a crash cut off is ignored. Of
several processes, the first writes these files. Process 1 appends to samples.1.jsonl and
grades.1.jsonl, and so on; the first moves their lines to its own files.

A response and its grade are kept apart: a response is expensive and final, and a grade can be
computed again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from rlobj.base.errors import Argument, ConfigError, DataError, Message, RunError, reported
from rlobj.base.files import WHOLE, a_file, parse_json, read_whole, write_whole
from rlobj.base.folders import lock_folder, refuse_links
from rlobj.base.paths import there
from rlobj.conversations.grading import described, turn_of
from rlobj.data import Problem
from rlobj.installation import require_format
from rlobj.rewards import Graded
from rlobj.samplers import Response

SETTINGS = "settings.json"
FORMAT = 1
"""Of the files of an evaluation, in its settings. Another one is refused."""
LOOK = 1.0
"""Seconds between two looks at what other processes have stored."""
Key = tuple[str, str, int]
"""(benchmark, problem id, sample)."""
Line = TypeVar("Line")


@dataclass(frozen=True)
class GradedProblem:
    """A problem with its graded responses, in the order of their ids."""

    problem: Problem
    responses: tuple[Response, ...]

    @property
    def grades(self) -> tuple[Graded, ...]:
        """The grades of the responses."""
        return tuple(response.grade for response in self.responses)

    @property
    def correct(self) -> int:
        """Number of responses that are right."""
        return sum(grade.correct is True for grade in self.grades)

    @property
    def undecided(self) -> int:
        """Number of responses that the grader could not decide; they count as wrong."""
        return sum(grade.undecided for grade in self.grades)

    @property
    def share(self) -> float:
        """The share of right responses."""
        return self.correct / len(self.grades)

    @property
    def rewards(self) -> tuple[float, ...]:
        """The rewards of the decided responses."""
        return tuple(grade.reward for grade in self.grades if not grade.undecided)

    def value(self, says_right: bool) -> float:
        """The share of right responses, or else the mean of `rewards`; nan without any."""
        return self.share if says_right else fmean(self.rewards or [math.nan])


@dataclass(frozen=True)
class GradedBenchmark:
    """One benchmark's problems with their graded responses; their numbers may differ."""

    benchmark: str
    problems: tuple[GradedProblem, ...]

    @property
    def says_right(self) -> bool:
        """Whether each grade that has a reward says whether the response is right.

        Without any reward nobody knows it of a function; all other graders would say it. An
        environment gives no verdict on a conversation that was cut, which counts as wrong.
        """
        responses = [response for problem in self.problems for response in problem.responses]
        verdicts = [
            response.grade.correct
            for response in responses
            if not response.grade.undecided and not response.cut_without_verdict
        ]
        if verdicts:
            return None not in verdicts
        return not any(response.grade.reason.endswith("custom") for response in responses)

    @property
    def verifiers(self) -> tuple[str, ...]:
        """The versions of the verifier that gave the grades; empty if none is known."""
        versions = {grade.verifier for problem in self.problems for grade in problem.grades}
        return tuple(sorted(v or "unknown" for v in versions)) if versions - {None} else ()


class Samples:
    """Settings, problems, responses and grades of an evaluation.

    Args:
        path: a folder, which `locked` makes; None = everything is kept in memory.
        rank: of this process among those that evaluate into the folder.

    Attributes:
        path: absolute.
        rank: as given.
        responses: by key.
        grades: by key.
    """

    def __init__(self, path: Path | str | None = None, rank: int = 0) -> None:
        self.path = None if path is None else Path(path).absolute()
        if self.path is not None:
            there(self.path)
        self.rank = rank
        self.responses: dict[Key, Response] = {}
        self.grades: dict[Key, Graded] = {}
        self._settings: dict[str, Any] = {}
        self._problems: dict[str, list[Problem]] = {}
        self._read: dict[str, tuple[int, int]] = {}
        self._looked = 0.0

    @classmethod
    def open(cls, path: Path | str) -> Samples:
        """Open an existing folder and read everything in it.

        Raises:
            ConfigError: the folder holds no evaluation.
        """
        samples = cls(path)
        if "benchmarks" not in samples.settings():
            raise ConfigError(
                f"{path} is not an evaluation: it has no settings.json, or that has no benchmarks. "
                "Create an evaluation with rlobj eval MODEL --out DIR"
            )
        samples.read()
        return samples

    def locked(self) -> AbstractContextManager[None]:
        """Keeps other processes from writing to the folder, which is made if it does not exist.

        Raises:
            ConfigError: another process writes to the folder, it cannot be written, or it has links
                to files elsewhere.
        """
        if self.path is None:
            return contextlib.nullcontext()
        if there(self.path / SETTINGS):
            refuse_links(self.path)
        return lock_folder(self.path, "evaluating into")

    def require_free(self) -> None:
        """Refuse a folder that holds something else, such as a model, a run or a file to grade.

        Raises:
            ConfigError: the folder has files and no evaluation.
        """
        path = self.path
        if path is None or not path.is_dir() or there(path / SETTINGS):
            return
        if any(entry.name != ".lock" for entry in path.iterdir()):
            raise ConfigError(
                f"{path} has files, but is not an evaluation. Choose another folder with ",
                Argument("out", "DIR"),
            )

    # Settings and problems.

    def settings(self) -> dict[str, Any]:
        """Everything that changes a number, and where the evaluation ran; {} at first.

        Raises:
            DataError: settings.json is not a JSON object.
            ConfigError: the files have another format.
        """
        if self.path is None or not there(self.path / SETTINGS):
            return self._settings
        with reported(DataError, f"{self.path / SETTINGS} cannot be read", OSError, ValueError):
            settings = parse_json(read_whole(self.path / SETTINGS))
        if not isinstance(settings, dict):
            raise DataError(f"{self.path / SETTINGS}: expected a JSON object")
        if "benchmarks" in settings:
            sessions = settings.get("sessions")
            last = sessions[-1] if isinstance(sessions, list) and sessions else None
            versions = last.get("versions") if isinstance(last, dict) else None
            again = Message("evaluate again with ", Argument("out", "DIR"))
            require_format(self.path, settings, FORMAT, versions, again)
            if not _well_formed(settings):
                raise DataError(
                    f"{self.path / SETTINGS}: expected benchmarks by name, each with the settings "
                    "of its reward, and sessions"
                )
        return settings

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings."""
        self._settings = dict(settings)
        self.write(SETTINGS, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")

    def problems(self) -> dict[str, list[Problem]]:
        """Benchmark -> its problems, in their order."""
        if self.path is None:
            return self._problems
        problems: dict[str, list[Problem]] = {}
        self._read.pop("problems.jsonl", None)
        names = ("problem", "prompt", "answer", "extra")
        for benchmark, problem in self._lines(
            "problems.jsonl",
            lambda line: (line["benchmark"], Problem(*(line[name] for name in names))),
        ):
            problems.setdefault(benchmark, []).append(problem)
        return problems

    def write_problems(self, problems: Mapping[str, Sequence[Problem]]) -> None:
        """Replace the problems."""
        self._problems = {name: list(those) for name, those in problems.items()}
        lines = (
            {"benchmark": name, "problem": problem.id}
            | {part: getattr(problem, part) for part in ("prompt", "answer", "extra")}
            for name, those in problems.items()
            for problem in those
        )
        self.write("problems.jsonl", "".join(map(_line, lines)))

    # Responses and grades.

    def read(self, *, repair: bool = False) -> None:
        """Read all responses and grades; grades without a response are dropped.

        A second call reads only what was added since.

        Args:
            repair: cut off a last line that a crash left incomplete, and take over what other
                processes left. Only with the lock held.

        Raises:
            DataError: a damaged line.
            RunError: the disk refused.
        """
        for name in [*([] if repair else self._others("samples")), "samples.jsonl"]:
            for key, response in self._lines(name, _response, repair=repair):
                self.responses.setdefault(key, response)
        for name in [*([] if repair else self._others("grades")), "grades.jsonl"]:
            for key, grade in self._lines(name, _grade, repair=repair):
                if key in self.responses:
                    self.grades[key] = grade
        if repair:
            self.gather(last=True)

    def gather(self, *, last: bool = False) -> Counter[str]:
        """Take over what other processes have stored; the first process does it, once in a second.

        Args:
            last: do it now. They store no more, and their files are deleted.

        Returns:
            The number of new responses of each benchmark.

        Raises:
            DataError: a damaged line.
            RunError: the disk refused.
        """
        if self.rank or (time.monotonic() < self._looked + LOOK and not last):
            return Counter()
        self._looked = time.monotonic()
        grades = dict(self._of_others("grades", _grade))  # first: each of them has its response
        responses = dict(self._of_others("samples", _response))
        new = {key: response for key, response in responses.items() if key not in self.responses}
        self.add(new)
        ungraded = self.responses.keys() - self.grades.keys()
        self.grade({key: grade for key, grade in grades.items() if key in ungraded})
        if last and self.path is not None:
            for name in [*self._others("samples"), *self._others("grades")]:
                (self.path / name).unlink()
                self._read.pop(name, None)
        return Counter(benchmark for benchmark, _, _ in new)

    def _others(self, kind: str) -> list[str]:
        """The files of the other processes."""
        files = () if self.path is None else self.path.glob(f"{kind}.*.jsonl")
        return sorted(file.name for file in files)

    def _of_others(self, kind: str, read: Callable[[dict[str, Any]], Line]) -> Iterator[Line]:
        return chain.from_iterable(self._lines(name, read) for name in self._others(kind))

    def add(self, responses: Mapping[Key, Response]) -> None:
        """Add responses; the file has them when this returns.

        Raises:
            RunError: the disk refused.
        """
        lines = (
            {**_named(key), "seed": r.seed, "tokens": r.length, "finish": r.finish}
            | {"response": r.text, **({"turns": [*map(described, r.turns)]} if r.turns else {})}
            for key, r in responses.items()
        )
        self._append("samples.jsonl", lines)
        self.responses.update(responses)

    def grade(self, grades: Mapping[Key, Graded]) -> None:
        """Add grades.

        Raises:
            RunError: the disk refused.
        """
        self._append("grades.jsonl", (grade_line(key, grade) for key, grade in grades.items()))
        self.grades.update(grades)

    def rewrite_grades(self, grades: Mapping[Key, Graded]) -> None:
        """Replace all grades at once."""
        self.write("grades.jsonl", "".join(_line(grade_line(k, g)) for k, g in grades.items()))
        self.grades = dict(grades)

    def graded(
        self,
        benchmark: str,
        problems: Iterable[Problem],
        grades: Mapping[Key, Graded] | None = None,
    ) -> GradedBenchmark:
        """The graded responses of a benchmark; problems without any are left out.

        Args:
            benchmark: its name.
            problems: its problems.
            grades: those that count; None = all that are stored.
        """
        grades = self.grades if grades is None else grades
        keys = sorted(key for key in grades if key[0] == benchmark)
        by_problem = {name: list(those) for name, those in groupby(keys, itemgetter(1))}
        graded = []
        for problem in problems:
            if of_problem := by_problem.get(problem.id):
                responses = (replace(self.responses[k], grade=grades[k]) for k in of_problem)
                graded.append(GradedProblem(problem, tuple(responses)))
        return GradedBenchmark(benchmark, tuple(graded))

    def write(self, name: str, text: str) -> None:
        """Write a whole file, or keep the old one if that fails; nothing in memory.

        Raises:
            RunError: the disk refused.
        """
        if self.path is not None:
            write_whole(self.path / name, text.encode("utf-8", "surrogatepass"))

    def _append(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        if self.path is None:
            return
        if self.rank:
            name = name.replace(".", f".{self.rank}.")
        text = "".join(map(_line, lines)).encode("utf-8", "surrogatepass")
        path = self.path / name
        with reported(RunError, f"cannot write {path}", OSError), path.open("ab", 0) as file:
            whole = file.tell()
            if file.write(text) < len(text):
                file.truncate(whole)
                raise OSError("the disk is full")

    def _lines(
        self, name: str, read: Callable[[dict[str, Any]], Line], *, repair: bool = False
    ) -> Iterator[Line]:
        """The complete lines of a file that were not read yet, each as `read` reads it.

        Raises:
            DataError: a damaged line.
        """
        if self.path is None or not there(self.path / name):
            return
        file = self.path / name
        end, count = self._read.get(name, (0, 0))
        with a_file(file).open("rb") as lines:
            lines.seek(end)
            whole = iter(lambda: lines.readline(WHOLE), b"")
            for number, line in enumerate(whole, count + 1):
                if not line.endswith(b"\n") and len(line) < WHOLE:  # or being written
                    break
                end += len(line)
                self._read[name] = end, number
                try:
                    entry = read(parse_json(line.decode("utf-8", "surrogatepass")))
                except (ValueError, TypeError, LookupError, AttributeError) as error:
                    raise DataError(f"{file}:{number}: damaged, or not JSON ({error!r})") from error
                yield entry
        if repair:
            with reported(RunError, f"cannot write {file}", OSError):
                os.truncate(file, end)


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False, default=str) + "\n"


def _named(key: Key) -> dict[str, Any]:
    benchmark, problem, sample = key
    return {"benchmark": benchmark, "problem": problem, "sample": sample}


def _key(line: dict[str, Any]) -> Key:
    key = line.pop("benchmark"), line.pop("problem"), line.pop("sample")
    if [type(part) for part in key] != [str, str, int]:
        raise TypeError(key)
    return key


def _response(line: dict[str, Any]) -> tuple[Key, Response]:
    key = _key(line)
    return key, Response(
        prompt=(),
        tokens=(),
        logprobs=(),
        text=str(line["response"]),
        finish=line["finish"],
        weight_version=0,
        turns=[turn_of(turn) for turn in line.get("turns", ())],
        id=key[2],
        seed=line["seed"],
        length=line["tokens"],
    )


def _grade(line: dict[str, Any]) -> tuple[Key, Graded]:
    key, reward = _key(line), line.pop("reward")
    return key, Graded(math.nan if reward is None else float(reward), **line)


def grade_line(key: Key, grade: Graded) -> dict[str, Any]:
    """A grade as its line in grades.jsonl has it."""
    return {
        **_named(key),
        "correct": grade.correct,
        "reward": None if math.isnan(grade.reward) else grade.reward,
        "answer": grade.answer,
        "reason": grade.reason,
        **({} if grade.verifier is None else {"verifier": grade.verifier}),
    }


def _well_formed(settings: Mapping[str, Any]) -> bool:
    """Whether benchmarks and sessions have the rewards that they need; others wrote the file."""
    benchmarks, sessions = settings["benchmarks"], settings.get("sessions", [])
    if not isinstance(benchmarks, dict) or not isinstance(sessions, list):
        return False
    if not all(isinstance(part, dict) for part in [*benchmarks.values(), *sessions]):
        return False
    before = [session.get("rewards_before", {}) for session in sessions]
    if not all(isinstance(rewards, dict) for rewards in before):
        return False
    rewards = [benchmark.get("reward") for benchmark in benchmarks.values()]
    rewards += [reward for by_name in before for reward in by_name.values()]
    return all(isinstance(reward, dict) and "kind" in reward for reward in rewards)
