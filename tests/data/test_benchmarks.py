"""Benchmarks by name: every published layout gives the same problems, and says what is odd."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from data_files import verl_row, write_lines, write_parquet

from rlobj.base.errors import DataError
from rlobj.data import DataConfig, load_problems
from rlobj.data.benchmarks import BENCHMARKS, load_benchmark
from rlobj.data.hub import HubSource

SHARED = Path(__file__).parents[3] / "shared" / "data" / "benchmarks"
with_files = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no benchmark files in {SHARED}")


@pytest.fixture(autouse=True)
def no_environment_folder(monkeypatch):
    monkeypatch.delenv("RLOBJ_DATA_DIR", raising=False)


@pytest.fixture
def stand_in(hub_cache, monkeypatch):
    """Makes a folder the hub's copy of a benchmark."""

    def set_source(name, source):
        monkeypatch.setitem(BENCHMARKS, name, replace(BENCHMARKS[name], hub=source))

    return set_source


def answers(loaded):
    return [problem.answer for problem in loaded.problems]


def ids(loaded):
    return [problem.id for problem in loaded.problems]


# ---- the files ---------------------------------------------------------------------------------


@with_files
@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_has_unique_problems_and_keeps_its_golds(name):
    loaded = load_benchmark(name, data_dir=SHARED)
    lines = (SHARED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(loaded.problems) == BENCHMARKS[name].problems == len(rows)
    assert len(set(ids(loaded))) == len({item.prompt for item in loaded.problems}) == len(rows)
    assert [(item.id, item.answer) for item in loaded.problems] == [
        (row["id"], row["answer"]) for row in rows
    ]
    assert loaded.source == str(SHARED / f"{name}.jsonl")
    assert loaded.notes == BENCHMARKS[name].notes


# ---- layouts -----------------------------------------------------------------------------------


def test_ids_that_are_numbers_get_the_name_of_the_benchmark(tmp_path):
    row = {"problem": "Q?", "answer": "\\frac{13}{32}", "problem_type": ["Algebra"]}
    rows = [{"problem_idx": i, **row, "problem": f"Q{i}?\n"} for i in (1, 2)]
    write_parquet(tmp_path / "cmimc25.parquet", rows)
    loaded = load_benchmark("cmimc25", data_dir=tmp_path)
    assert ids(loaded) == ["cmimc25-1", "cmimc25-2"]
    assert answers(loaded) == ["\\frac{13}{32}"] * 2
    assert [item.prompt for item in loaded.problems] == ["Q1?", "Q2?"]
    assert loaded.problems[0].extra == {"problem_type": ["Algebra"]}


@pytest.mark.parametrize(
    ("gold", "expected"), [("025", "25"), ("000", "0"), ("\\boxed{204}", "204")]
)
def test_wrapping_of_golds_is_removed(tmp_path, gold, expected):
    write_lines(tmp_path / "amc23.jsonl", [{"question": "Q?", "answer": gold}])
    assert answers(load_benchmark("amc23", data_dir=tmp_path)) == [expected]


def test_columns_with_capitals_and_a_boxed_solution(tmp_path):
    with (tmp_path / "aime24.csv").open("w", newline="", encoding="utf-8") as file:
        header, question = ["ID", "Problem", "Solution", "Answer"], "Two,\nlines?"
        csv.writer(file).writerows([header, ["2024-I-1", question, "\\boxed{9}", "073"]])
    loaded = load_benchmark("aime24", data_dir=tmp_path)
    assert (ids(loaded), answers(loaded)) == (["2024-I-1"], ["73"])
    assert loaded.problems[0].prompt == question
    rows = [{"id": 60, "problem": "Q?", "solution": "So \\boxed{204}.", "url": ""}]
    write_lines(tmp_path / "aime25.json", rows)
    loaded = load_benchmark("aime25", data_dir=tmp_path)
    assert (ids(loaded), answers(loaded)) == (["aime25-60"], ["204"])


def test_several_final_answers_are_joined(tmp_path):
    rows = [
        {"question": "Q?", "final_answer": ["$2,3$"], "is_multiple_answer": True},
        {"question": "R?", "final_answer": ["2", "3"], "is_multiple_answer": True},
        {"question": "S?", "final_answer": None, "is_multiple_answer": False},
    ]
    write_parquet(tmp_path / "olympiadbench.parquet", rows)
    loaded = load_benchmark("olympiadbench", data_dir=tmp_path)
    assert answers(loaded) == ["$2,3$", "2, 3"]
    assert ids(loaded) == ["olympiadbench-0", "olympiadbench-1"]
    assert "1 rows without an answer were left out" in loaded.notes
    assert all("alternatives" not in item.extra for item in loaded.problems)


def test_alternative_golds_are_kept_and_the_first_is_the_answer(tmp_path):
    golds = [["4.5e33", "4.5 \\times 10^{33}"], ["2"]]
    rows = [verl_row(f"Q{i}?", gold, f"minerva-{i}") for i, gold in enumerate(golds)]
    write_parquet(tmp_path / "minerva.parquet", rows)
    found = load_benchmark("minerva", data_dir=tmp_path).problems
    alternatives = [item.extra.get("alternatives") for item in found]
    assert [item.answer for item in found] == ["4.5e33", "2"]
    assert alternatives == [golds[0], None]


# ---- what is odd --------------------------------------------------------------------------------


def test_note_on_another_number_of_problems(tmp_path):
    rows = [{"problem": f"Q{i}?", "answer": i} for i in range(83)]
    path = write_lines(tmp_path / "amc23.jsonl", rows)
    (note,) = load_benchmark("amc23", data_dir=tmp_path).notes
    assert note == f"{path} has 83 problems; amc23 has 40: scores do not compare"
    write_lines(tmp_path / "amc23.jsonl", rows[:40])
    assert load_benchmark("amc23", data_dir=tmp_path, limit=5).notes == ()


def test_rows_repeated_for_sampling_are_left_out(tmp_path):
    rows = [verl_row(f"Q{i}?", str(i), f"AIME24-{i}") for i in range(30)] * 32
    write_parquet(tmp_path / "aime24.parquet", rows)
    loaded = load_benchmark("aime24", data_dir=tmp_path)
    assert len(loaded.problems) == 30
    assert loaded.notes == ("930 rows with repeated questions were left out",)


# ---- where --------------------------------------------------------------------------------------


def test_the_source_on_the_hub_is_returned(tmp_path, stand_in):
    rows = [{"id": i, "problem": f"Q{i}?", "answer": i} for i in range(30)]
    write_parquet(tmp_path / "good" / "test.parquet", rows)
    stand_in("aime24", HubSource(str(tmp_path / "good"), split="test"))
    loaded = load_benchmark("aime24")
    assert loaded.source == f"{tmp_path / 'good'}[test]"
    assert ids(loaded)[:2] == ["aime24-0", "aime24-1"]
    assert loaded.notes == ()


def test_offline_error_names_the_source_and_the_expected_file(offline):
    with pytest.raises(DataError) as caught:
        load_benchmark("aime24")
    text = str(caught.value)
    assert text.startswith(f"{BENCHMARKS['aime24'].hub} cannot be loaded from")
    assert "HF_ENDPOINT=URL" in text


def test_error_names_the_missing_file(tmp_path):
    for name, place, message in (
        ("aime24", tmp_path, r"no aime24\.jsonl"),
        ("aime24", tmp_path / "gone", r"no such folder"),
        ("aime-24", tmp_path, r"unknown benchmark 'aime-24'.*mean 'aime24'"),
    ):
        with pytest.raises(DataError, match=message):
            load_benchmark(name, data_dir=place)


def test_folder_of_the_environment_is_used_before_the_hub(tmp_path, stand_in, monkeypatch):
    folder = tmp_path / "files"
    write_parquet(tmp_path / "hub" / "train.parquet", [{"problem": "hub", "answer": "1"}])
    stand_in("brumo25", HubSource(str(tmp_path / "hub")))
    monkeypatch.setenv("RLOBJ_DATA_DIR", str(folder))
    with pytest.raises(DataError, match=r"RLOBJ_DATA_DIR=.*no such folder"):
        load_benchmark("brumo25")
    folder.mkdir()
    assert load_benchmark("brumo25").problems[0].prompt == "hub"
    write_lines(folder / "brumo25.jsonl", [{"problem": "file", "answer": "1"}])
    assert load_benchmark("brumo25").problems[0].prompt == "file"
    assert load_benchmark("brumo25", data_dir=folder).problems[0].prompt == "file"


def test_benchmark_is_for_testing_only(tmp_path, monkeypatch):
    write_lines(tmp_path / "aime24.jsonl", [{"problem": "Q?", "answer": "007"}])
    monkeypatch.setenv("RLOBJ_DATA_DIR", str(tmp_path))
    config = DataConfig(source="gsm8k", test="aime24")
    assert [item.answer for item in load_problems(config, "test")] == ["7"]
    with pytest.raises(DataError, match=r"is a benchmark: use data\.test=aime24"):
        load_problems(DataConfig(source="aime24"), "train")
