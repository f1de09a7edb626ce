"""Recorded tokens in the whole text of their response."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rlobj.insight.contexts import in_responses

RESPONSE = "2+6=12;12+4=16;26+9=25#25"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "samples").mkdir()
    rows = {"id": [7, 8], "prompt": ["6+6+4+9=", "1+1="], "response": [RESPONSE, "2"]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "samples" / "step-000003.parquet")
    return tmp_path


def test_the_context_becomes_the_whole_response_with_its_prompt(run: Path) -> None:
    cut = {"step": 3, "response": 7, "before": "4=16;", "text": "2", "after": "6+9"}
    with_prompt = {"step": 3, "response": 7, "before": "+4+9=2+6=1", "text": "2", "after": ";12"}
    first, second = in_responses(run, [cut, with_prompt])
    assert first["before"] == "6+6+4+9=│2+6=12;12+4=16;"
    assert first["text"] + first["after"] == "26+9=25#25"
    assert (second["before"], second["after"]) == ("6+6+4+9=│2+6=1", ";12+4=16;26+9=25#25")


def test_special_tokens_behind_the_response_do_not_matter(run: Path) -> None:
    rows = [
        {"step": 3, "response": 7, "before": "6+9=25#", "text": "25", "after": "<eos>"},
        {"step": 3, "response": 7, "before": "25#25", "text": "<eos>", "after": ""},
    ]
    last, end = in_responses(run, rows)
    assert (last["before"], last["after"]) == (f"6+6+4+9=│{RESPONSE[:-2]}", "")
    assert (end["before"], end["text"], end["after"]) == (f"6+6+4+9=│{RESPONSE}", "<eos>", "")


@pytest.mark.parametrize(
    "token",
    [
        {"step": 4, "response": 7},  # no sample table
        {"step": 3, "response": 9},  # no such response
        {"step": 3, "response": 8},  # another text
    ],
)
def test_a_token_without_its_response_stays_as_it_is(run: Path, token: dict) -> None:
    row = {**token, "before": "12;", "text": "1", "after": "2+4"}
    assert in_responses(run, [row]) == [row]


def test_a_damaged_sample_table_hides_no_token(run: Path) -> None:
    file = run / "samples" / "step-000003.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    row = {"step": 3, "response": 7, "before": "4=16;", "text": "2", "after": "6+9"}
    assert in_responses(run, [row]) == [row]
