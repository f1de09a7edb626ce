"""Responses and grades of an evaluation, in memory or in a folder that survives a kill.

`runs.layout` lists the files. A line belongs to (benchmark, problem, sample). A last line that a
crash cut off is ignored. Of several processes, the first writes these files. Process 1 appends to
samples.1.jsonl and grades.1.jsonl, and so on; in the end the first moves their lines to its own.

A response and its grade are kept apart: a response is expensive and final, and a grade can be
computed again.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
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
from rlobj.runs.layout import GRADES_FILE, PROBLEMS_FILE, SAMPLES_FILE, SETTINGS_FILE
from rlobj.samplers import Response

FORMAT = 1
"""Of the files of an evaluation, in its settings. Another one is refused."""
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

    @classmethod
    def open(cls, path: Path | str) -> "Samples":
        """Open an existing folder and read everything in it.

        Raises:
            ConfigError: the folder holds no evaluation.
        """
        samples = cls(path)
        if "benchmarks" not in samples.settings():
            raise ConfigError(f"{path} is not an evaluation: its settings.json has no benchmarks")
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
            raise ConfigError(f"{path} {what}. Choose another with ", Argument("out", "DIR"))

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

    def read(self) -> None:
        """Read all responses and grades, also those of other processes.

        Grades without a response are dropped.

        Raises:
            DataError: a damaged line.
        """
        for name in self._files(SAMPLES_FILE):
            for key, response in self._lines(name, _response):
                self.responses.setdefault(key, response)
        for name in self._files(GRADES_FILE):
            for key, grade in self._lines(name, _grade):
                if key in self.responses:
                    self.grades[key] = grade

    def take_over(self) -> None:
        """Move the lines of all processes to the files of the first, which calls this.

        The lock is held, and no process stores anything. A last line that a crash cut off goes.

        Raises:
            RunError: the disk refused.
        """
        if self.path is None:
            return
        for name in (SAMPLES_FILE, GRADES_FILE):
            with reported(RunError, f"cannot write {self.path / name}", OSError):
                for file in map(self.path.joinpath, self._files(name)):
                    lines, _, cut_off = file.read_bytes().rpartition(b"\n")
                    if file.name != name:
                        append_whole(self.path / name, lines + b"\n" * bool(lines), sync=True)
                        file.unlink()
                    elif cut_off:
                        os.truncate(file, file.stat().st_size - len(cut_off))

    def _files(self, name: str) -> list[str]:
        """The names of a file and of those of the same kind that processes 1, 2, ... append to."""
        if self.path is None:
            return []
        others = sorted(file.name for file in self.path.glob(name.replace(".", ".*.")))
        return [*([name] if (self.path / name).exists() else []), *others]

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
        lines = (
            {
                **_named(key),
                "correct": grade.correct,
                "reward": None if math.isnan(grade.reward) else grade.reward,
                "answer": grade.answer,
                "reason": grade.reason,
                **({} if grade.verifier is None else {"verifier": grade.verifier}),
            }
            for key, grade in grades.items()
        )
        self._append(GRADES_FILE, lines)
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
        path = self.path / (name.replace(".", f".{self.rank}.") if self.rank else name)
        content = "".join(map(_line, lines)).encode("utf-8", "surrogatepass")
        with reported(RunError, f"cannot write {path}", OSError):
            append_whole(path, content)

    def _lines(self, name: str, read: Callable[[dict[str, Any]], Line]) -> Iterator[Line]:
        """The complete lines of a file, each as `read` reads it.

        Raises:
            DataError: a damaged line.
        """
        return (line for _, line in json_lines(self.path / name, read)) if self.path else iter(())


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
