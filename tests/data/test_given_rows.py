"""Problems from rows that a Python program gives."""

from __future__ import annotations

import logging

import pytest

from rlobj.base.errors import DataError
from rlobj.data import Columns, DataConfig, Problem, load_problems


def problems_of_rows(rows, columns=None, **settings):
    config = DataConfig(source="given", columns=columns or Columns(), **settings)
    return load_problems(config, "train", rows)


ROWS = [
    {"problem": "1+1?", "answer": 2, "level": 3},
    {"problem": "2+2?", "answer": "4"},
    {"problem": "1+1?", "answer": "3"},
    {"problem": "3+3?", "answer": None},
]


def test_rows_become_problems_and_each_question_occurs_once(caplog) -> None:
    caplog.set_level(logging.INFO, "rlobj")
    first, second = problems_of_rows(iter(ROWS))
    assert (first.prompt, first.answer, first.extra) == ("1+1?", "2", {"level": 3})
    assert second.answer == "4"
    assert "left out 1 rows with repeated" in caplog.text
    assert "1 repeated questions have different answers" in caplog.text
    assert "left out 1 rows without an answer" in caplog.text


def test_limit_uses_the_first_problems() -> None:
    assert [problem.answer for problem in problems_of_rows(ROWS, limit=1)] == ["2"]


def test_columns_can_be_named() -> None:
    rows = [{"q": "1+1?", "gold": "2", "key": 7}]
    [problem] = problems_of_rows(rows, Columns(prompt="q", answer="gold", id="key"))
    assert problem == Problem("7", "1+1?", "2")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no problem with a question and an answer"),
        (["1+1?"], "row 1: expected a mapping.*got str"),
        ([{"text": "1+1?"}], "row 1: found no column for the prompt"),
        ([ROWS[0], {"problem": ["?"], "answer": "4"}], "row 2, column 'problem'"),
    ],
)
def test_error_names_the_row_that_cannot_be_read(rows, message) -> None:
    with pytest.raises(DataError, match=message):
        problems_of_rows(rows)
