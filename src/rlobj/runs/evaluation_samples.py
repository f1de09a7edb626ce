"""Responses and grades of an evaluation, in memory or in a folder that survives a kill.

`runs.layout` lists the files. A line belongs to (benchmark, problem, sample). A last line that a
crash cut off is ignored. Of several processes, the first writes these files. Process 1 appends to
samples.1.jsonl and grades.1.jsonl, and so on; the first moves their lines to its own files.

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
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from rlobj.base.errors import Argument, ConfigError, DataError, Message, RunError, reported
from rlobj.base.files import append_whole, json_lines, parse_json, write_whole
from rlobj.base.folders import lock_folder, refuse_links
from rlobj.base.paths import there
from rlobj.conversations.grading import described, turn_of
from rlobj.data import Problem
from rlobj.installation import require_format
from rlobj.rewards import Graded
from rlobj.runs.layout import (
    GRADES_FILE,
    PROBLEMS_FILE,
    SAMPLES_FILE,
    SETTINGS_FILE,
    files_of_processes,
    process_file,
)
from rlobj.samplers import Response

FORMAT = 1
"""Of the files of an evaluation, in its settings. Another one is refused."""
LOOK = 1.0
"""Seconds between two looks at what other processes have stored."""
Key = tuple[str, str, int]
"""(benchmark, problem id, sample)."""
Line = TypeVar("Line")


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
        if there(self.path / SETTINGS_FILE):
            refuse_links(self.path)
        return lock_folder(self.path, "evaluating into")

    def require_free(self, *, new: bool = False) -> None:
        """Refuse a folder that holds something else, such as a model, a run or a file to grade.

        Args:
            new: refuse one that holds an evaluation, too.

        Raises:
            ConfigError: the folder has such files.
        """
        path = self.path
        if path is None or not path.is_dir():
            return
        stored = (path / SETTINGS_FILE).exists()
        if any(entry.name != ".lock" for entry in path.iterdir()) and (new or not stored):
            what = "has an evaluation already" if stored else "has files, but is not an evaluation"
            out = Argument("out", "DIR")
            raise ConfigError(f"{path} {what}. Choose another folder with ", out)

    # Settings and problems.

    def settings(self) -> dict[str, Any]:
        """Everything that changes a number, and where the evaluation ran; {} at first.

        Raises:
            DataError: settings.json cannot be read.
            ConfigError: the files have another format.
        """
        if self.path is None or not there(file := self.path / SETTINGS_FILE):
            return self._settings
        with reported(DataError, f"{file} cannot be read", OSError, ValueError):
            settings = parse_json(file.read_bytes())
        if "benchmarks" in settings:
            last = ({}, *settings.get("sessions", ()))[-1]
            again = Message("evaluate again with ", Argument("out", "DIR"))
            require_format(self.path, settings, FORMAT, last.get("versions"), again)
        return settings

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings."""
        self._settings = dict(settings)
        self.write(SETTINGS_FILE, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")

    def problems(self) -> dict[str, list[Problem]]:
        """Benchmark -> its problems, in their order."""
        if self.path is None:
            return self._problems
        problems: dict[str, list[Problem]] = {}
        self._read.pop(PROBLEMS_FILE, None)
        names = ("problem", "prompt", "answer", "extra")
        for benchmark, problem in self._lines(
            PROBLEMS_FILE,
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
        self.write(PROBLEMS_FILE, "".join(map(_line, lines)))

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
        for name in [*([] if repair else self._others(SAMPLES_FILE)), SAMPLES_FILE]:
            for key, response in self._lines(name, _response):
                self.responses.setdefault(key, response)
        for name in [*([] if repair else self._others(GRADES_FILE)), GRADES_FILE]:
            for key, grade in self._lines(name, _grade):
                if key in self.responses:
                    self.grades[key] = grade
        if repair and self.path is not None:
            for name in (SAMPLES_FILE, GRADES_FILE):
                if (file := self.path / name).exists():
                    os.truncate(file, self._read.get(name, (0, 0))[0])
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
        grades = dict(self._of_others(GRADES_FILE, _grade))  # first: each of them has its response
        responses = dict(self._of_others(SAMPLES_FILE, _response))
        new = {key: response for key, response in responses.items() if key not in self.responses}
        self.add(new)
        ungraded = self.responses.keys() - self.grades.keys()
        self.grade({key: grade for key, grade in grades.items() if key in ungraded})
        if last and self.path is not None:
            for name in [*self._others(SAMPLES_FILE), *self._others(GRADES_FILE)]:
                (self.path / name).unlink()
                self._read.pop(name, None)
        return Counter(benchmark for benchmark, _, _ in new)

    def _others(self, name: str) -> list[str]:
        """The files of the other processes."""
        return [] if self.path is None else files_of_processes(self.path, name)

    def _of_others(self, name: str, read: Callable[[dict[str, Any]], Line]) -> Iterator[Line]:
        return chain.from_iterable(self._lines(file, read) for file in self._others(name))

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
        self._append(SAMPLES_FILE, lines)
        self.responses.update(responses)

    def grade(self, grades: Mapping[Key, Graded]) -> None:
        """Add grades.

        Raises:
            RunError: the disk refused.
        """
        self._append(GRADES_FILE, (grade_line(key, grade) for key, grade in grades.items()))
        self.grades.update(grades)

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
        path = self.path / process_file(name, self.rank)
        content = "".join(map(_line, lines)).encode("utf-8", "surrogatepass")
        with reported(RunError, f"cannot write {path}", OSError):
            append_whole(path, content)

    def _lines(self, name: str, read: Callable[[dict[str, Any]], Line]) -> Iterator[Line]:
        """The complete lines of a file that were not read yet, each as `read` reads it.

        Raises:
            DataError: a damaged line.
        """
        if self.path is not None:
            start = self._read.get(name, (0, 0))
            for end, line in json_lines(self.path / name, read, start):
                self._read[name] = end
                yield line


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False, default=str) + "\n"


def _named(key: Key) -> dict[str, Any]:
    benchmark, problem, sample = key
    return {"benchmark": benchmark, "problem": problem, "sample": sample}


def _key(line: dict[str, Any]) -> Key:
    return line.pop("benchmark"), line.pop("problem"), line.pop("sample")


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
