"""Responses made elsewhere: to which problem each of them belongs.

Rows of the same problem are its samples, in the order of the files. Nothing is guessed: a row that
may belong to two problems is refused. How a row is read is in `imported_formats`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from rlobj.base.errors import ConfigError, DataError
from rlobj.data import Problem
from rlobj.data.problems import digest
from rlobj.evaluation.imported_formats import PARTS, ImportedRow, read_rows, task_of
from rlobj.evaluation.records import ResponseRecord
from rlobj.evaluation.samples import Key

__all__ = ["PARTS", "read_responses", "task_of"]


def read_responses(
    files: Sequence[Path],
    benchmark: str,
    *,
    known: Sequence[Problem] | None = None,
    columns: Mapping[str, str] | None = None,
) -> tuple[list[Problem], dict[Key, ResponseRecord]]:
    """Problems and responses of files.

    Args:
        files: JSONL, JSON, Parquet, CSV or TSV.
        benchmark: the name of their problems together.
        known: the benchmark's problems, whose gold answers are used; a row belongs to the one with
            its id, else to the one whose question its prompt ends with, in any template. None = the
            files' own.
        columns: part (one of `PARTS`) -> column, if it is not found by itself.

    Returns:
        The problems that have a row, and the responses. A row may hold no response.

    Raises:
        ConfigError: a column for another part.
        DataError: no response, no gold answer, a part that cannot be read, or a row that belongs to
            no problem or may belong to several.
    """
    columns = columns or {}
    if other := sorted(columns.keys() - PARTS):
        raise ConfigError(f"columns: there is no part '{other[0]}'; expected {', '.join(PARTS)}")
    rows = [row for file in files for row in read_rows(file, columns, golds=known is None)]
    several = len({row.task for row in rows if row.task is not None}) > 1
    problems: dict[str, Problem] = {}
    responses: dict[Key, ResponseRecord] = {}
    counts: dict[str, int] = {}
    find = None if known is None else _finder(known)
    for row in rows:
        if several and row.task is not None:  # each task counts its ids from 0
            row = replace(row, id=f"{row.task}/{row.id}")
        problem = find(row) if find else _own(row, problems)
        problems[problem.id] = problem
        for text, tokens, finish in zip(row.texts, row.tokens, row.finish, strict=True):
            sample = counts.get(problem.id, 0)
            counts[problem.id] = sample + 1
            key = benchmark, problem.id, sample
            responses[key] = ResponseRecord(sample, row.seed, text, tokens, finish)
    if not responses:
        raise DataError(f"{', '.join(map(str, files))}: no response in it.")
    return list(problems.values()), responses


def _own(row: ImportedRow, problems: Mapping[str, Problem]) -> Problem:
    """The problem that a row itself describes."""
    if len(row.answers) == 0:
        raise DataError(
            f"{row.where}: no gold answer. Name its column with --column answer=COLUMN, or the "
            "benchmark with --on NAME."
        )
    if row.id is None and not row.prompt.strip():
        raise DataError(
            f"{row.where}: neither an id nor a question says which problem it belongs to. Name a "
            "column: --column id=COLUMN or --column prompt=COLUMN."
        )
    name = row.id if row.id is not None else digest(row.prompt)[:16]
    extra = {"alternatives": list(row.answers)} if len(row.answers) > 1 else {}
    own = Problem(name, row.prompt, row.answers[0], extra)
    there = problems.get(name, own)
    here, before = _squeezed(own.prompt), _squeezed(there.prompt)
    if (there.answer, there.extra) != (own.answer, own.extra):
        raise _two_problems(row.where, name, "gold answer", _golds(own), _golds(there))
    if here and before and here != before:
        raise _two_problems(row.where, name, "question", here[:80], before[:80])
    return there


def _golds(problem: Problem) -> str:
    return " or ".join(problem.extra.get("alternatives", [problem.answer]))


def _two_problems(where: str, name: str, what: str, here: str, before: str) -> DataError:
    return DataError(
        f"{where}: problem '{name}' has the {what} {here!r} here and {before!r} before. Name the "
        "column that identifies problems: --column id=COLUMN."
    )


def _finder(known: Sequence[Problem]) -> Callable[[ImportedRow], Problem]:
    """A function from a row to its problem among those of a benchmark."""
    by_id = {problem.id: problem for problem in known}
    by_question: dict[str, list[Problem]] = {}
    for problem in known:
        by_question.setdefault(_squeezed(problem.prompt), []).append(problem)
    by_question.pop("", None)

    @cache
    def asked_in(prompt: str) -> list[Problem]:
        """The problems with the question that the prompt is, or that ends last in the prompt.

        Few-shot examples come before the question. Of two questions that end at the same position,
        one is a part of the other; the longer one is taken.
        """
        if prompt in by_question:
            return by_question[prompt]
        ends = {question: _end(question, prompt) for question in by_question if question in prompt}
        last = max(ends, key=lambda question: (ends[question], len(question)), default="")
        return by_question[last] if ends.get(last) else []

    def find(row: ImportedRow) -> Problem:
        named = None if row.id is None else by_id.get(row.id)
        prompt = _squeezed(row.prompt)
        asked = asked_in(prompt)
        if named is not None:
            if prompt and named.prompt.strip() and named not in asked:
                other = f"asks '{asked[0].id}'" if asked else "does not hold its question"
                raise DataError(
                    f"{row.where}: the id is that of problem '{named.id}', and the prompt {other}. "
                    "Name the right columns: --column id=COLUMN or --column prompt=COLUMN."
                )
            return named
        if not asked:
            raise DataError(
                f"{row.where}: neither its id {row.id!r} nor its question is one of the "
                f"{len(known)} problems of the benchmark."
            )
        if len(asked) > 1:
            names = ", ".join(problem.id for problem in asked)
            raise DataError(
                f"{row.where}: its question is that of {names}. Name a column with their ids: "
                "--column id=COLUMN."
            )
        return asked[0]

    return find


def _end(question: str, prompt: str) -> int:
    """Where a question ends in a prompt for the last time; 0 if it is not there.

    A question that starts or ends inside a word or number is not there: "1+1?" is not in "11+1?".
    """
    edge = r"(?:(?<!\w)|(?!\w))"
    ends = [found.end() for found in re.finditer(edge + re.escape(question) + edge, prompt)]
    return max(ends, default=0)


def _squeezed(text: str) -> str:
    return " ".join(text.split())
