"""Responses and their grades, in memory or in a folder that survives a kill at any time:

    DIR/settings.json    everything that changes a number, and where it ran
    DIR/problems.jsonl   what was asked
    DIR/samples.jsonl    responses, one a line, only ever appended to
    DIR/grades.jsonl     grades, one a line, appended; `rewrite_grades` replaces the file

A line belongs to (benchmark, problem, sample). What a crash left of a last line is cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, DataError, RunError
from rlobj.data import Problem
from rlobj.evaluation.records import GradedBenchmark, GradedProblem, ResponseRecord
from rlobj.rewards import Graded

__all__ = ["EvaluationDirectory", "Key", "Samples"]

Key = tuple[str, str, int]
"""(benchmark, problem id, sample)."""


class Samples:
    """Responses and grades by key."""

    def __init__(self) -> None:
        self.responses: dict[Key, ResponseRecord] = {}
        self.grades: dict[Key, Graded] = {}

    def add(self, responses: Mapping[Key, ResponseRecord]) -> None:
        """Keep new responses."""
        self.responses.update(responses)

    def grade(self, grades: Mapping[Key, Graded]) -> None:
        """Keep new grades."""
        self.grades.update(grades)

    def evaluation(self, benchmark: str, problems: Iterable[Problem]) -> GradedBenchmark:
        """What is graded so far of one benchmark; problems without any response are left out."""
        places: dict[str, list[int]] = {}
        for name, problem, sample in self.grades:
            if name == benchmark:
                places.setdefault(problem, []).append(sample)
        answered = []
        for problem in problems:
            found = sorted(places.get(problem.id, ()))
            keys = [(benchmark, problem.id, sample) for sample in found]
            if keys:
                responses = tuple(self.responses[key] for key in keys)
                answered.append(
                    GradedProblem(problem, responses, tuple(self.grades[k] for k in keys))
                )
        return GradedBenchmark(benchmark, tuple(answered))


class EvaluationDirectory(Samples):
    """Samples in a folder.

    Args:
        path: the folder; made by `create`.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.path = Path(path)
        self.settings_file = self.path / "settings.json"

    @classmethod
    def open(cls, path: Path | str) -> EvaluationDirectory:
        """An existing folder with all it holds.

        Raises:
            ConfigError: no evaluation lies there.
        """
        found = cls(path)
        if not found.settings_file.is_file():
            raise ConfigError(
                f"{path} is no evaluation: it has no settings.json. rlobj eval MODEL --out DIR "
                "makes one, and rlobj eval score FILE does from responses made elsewhere"
            )
        if "benchmarks" not in found.settings():
            raise ConfigError(f"{path} is no evaluation: its settings.json names no benchmarks")
        found.read()
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second process from writing to the folder, which is made if need be.

        Raises:
            ConfigError: another one is at it, or the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise ConfigError(f"cannot write to {self.path}: {error}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ConfigError(f"another process is evaluating into {self.path}") from error
            yield

    # Settings and problems.

    def settings(self) -> dict[str, Any]:
        """What settings.json holds; {} before there is one.

        Raises:
            DataError: it is no JSON object.
        """
        if not self.settings_file.exists():
            return {}
        try:
            found = json.loads(self.settings_file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{self.settings_file} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise DataError(f"{self.settings_file}: expected a JSON object")
        return found

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Replace settings.json."""
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        self.write("settings.json", text)

    def problems(self) -> dict[str, list[Problem]]:
        """Benchmark -> its problems, in their order."""
        found: dict[str, list[Problem]] = {}
        for line in self._lines("problems.jsonl"):
            problem = Problem(line["problem"], line["prompt"], line["answer"], line["extra"])
            found.setdefault(line["benchmark"], []).append(problem)
        return found

    def write_problems(self, problems: Mapping[str, Sequence[Problem]]) -> None:
        """Replace problems.jsonl."""
        lines = (
            {
                "benchmark": benchmark,
                "problem": problem.id,
                "prompt": problem.prompt,
                "answer": problem.answer,
                "extra": problem.extra,
            }
            for benchmark, those in problems.items()
            for problem in those
        )
        self.write("problems.jsonl", "".join(map(_line, lines)))

    # Responses and grades.

    def read(self) -> None:
        """Everything in the folder; grades without a response, and repeated lines, are dropped."""
        for line in self._lines("samples.jsonl"):
            response = ResponseRecord(
                sample=line["sample"],
                seed=line["seed"],
                text=line["response"],
                tokens=line["tokens"],
                finish=line["finish"],
            )
            self.responses.setdefault(_key(line), response)
        for line in self._lines("grades.jsonl"):
            if _key(line) in self.responses:
                reward = math.nan if line["reward"] is None else line["reward"]
                grade = Graded(reward, line["correct"], line["reason"], line["answer"])
                self.grades[_key(line)] = grade

    def add(self, responses: Mapping[Key, ResponseRecord]) -> None:
        """Append responses to samples.jsonl; they are on the disk when this returns.

        Raises:
            RunError: the disk refused.
        """
        self._append(
            "samples.jsonl",
            (
                {
                    **_named(key),
                    "seed": response.seed,
                    "tokens": response.tokens,
                    "finish": response.finish,
                    "response": response.text,
                }
                for key, response in responses.items()
            ),
        )
        super().add(responses)

    def grade(self, grades: Mapping[Key, Graded]) -> None:
        """Append grades to grades.jsonl.

        Raises:
            RunError: the disk refused.
        """
        self._append("grades.jsonl", (_grade_line(key, grade) for key, grade in grades.items()))
        super().grade(grades)

    def rewrite_grades(self, grades: Mapping[Key, Graded]) -> None:
        """Replace all grades at once."""
        self.write("grades.jsonl", "".join(_line(_grade_line(k, g)) for k, g in grades.items()))
        self.grades = dict(grades)

    def write(self, name: str, text: str) -> None:
        """A whole file, or the old one if that fails.

        Raises:
            RunError: the disk refused.
        """
        place = self.path / f".{name}.{os.getpid()}.partial"
        try:
            with place.open("w", encoding="utf-8", errors="surrogatepass") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            place.replace(self.path / name)
        except OSError as error:
            place.unlink(missing_ok=True)
            raise RunError(f"cannot write {self.path / name}: {error}") from error

    def _append(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(map(_line, lines)).encode("utf-8", "surrogatepass")
        try:
            with (self.path / name).open("ab") as file:
                whole = file.tell()
                try:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    with contextlib.suppress(OSError):
                        file.truncate(whole)
                    raise
        except OSError as error:
            raise RunError(f"cannot write {self.path / name}: {error}") from error

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The lines of a file.

        Raises:
            DataError: a line that is not JSON, other than a last one that was cut off.
        """
        file = self.path / name
        if not file.exists():
            return
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):  # cut off, or being written
                    return
                try:
                    yield json.loads(line.decode("utf-8", "surrogatepass"))
                except ValueError as error:
                    raise DataError(f"{file}:{number}: not JSON ({error})") from error

    def mend(self) -> None:
        """Cut off what a crash left of a last line, so that the next one starts anew.

        Raises:
            RunError: the disk refused.
        """
        for name in ("samples.jsonl", "grades.jsonl"):
            file = self.path / name
            if not file.exists():
                continue
            try:
                with file.open("rb+") as lines:
                    lines.truncate(_end_of_lines(lines))
            except OSError as error:
                raise RunError(f"cannot write {file}: {error}") from error


def _end_of_lines(file: Any, piece: int = 1 << 16) -> int:
    """Where the last whole line ends."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - piece)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False, default=str) + "\n"


def _named(key: Key) -> dict[str, Any]:
    benchmark, problem, sample = key
    return {"benchmark": benchmark, "problem": problem, "sample": sample}


def _key(line: Mapping[str, Any]) -> Key:
    return line["benchmark"], line["problem"], line["sample"]


def _grade_line(key: Key, grade: Graded) -> dict[str, Any]:
    return {
        **_named(key),
        "correct": grade.correct,
        "reward": None if math.isnan(grade.reward) else grade.reward,
        "answer": grade.answer,
        "reason": grade.reason,
    }
