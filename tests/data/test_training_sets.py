"""Training sets by name, on files in their published formats."""

from __future__ import annotations

import logging
from dataclasses import replace

import datasets
import pytest
from data_files import write_lines, write_parquet

from rlobj.base.errors import DataError
from rlobj.data import Columns, DataConfig, format_prompt, load_problems
from rlobj.data.hub import HubSource
from rlobj.data.sources import NAMED_SOURCES


@pytest.fixture
def folder(tmp_path, monkeypatch, offline, hub_cache):
    """The folder that RLOBJ_DATA_DIR names, and no hub."""
    monkeypatch.setenv("RLOBJ_DATA_DIR", str(tmp_path))
    return tmp_path


def load(source, split="train", **fields):
    return load_problems(DataConfig(source=source, **fields), split)


def dapo_row(index, answer=None, copy=0):
    question = (
        "Solve the following math problem step by step. The last line of your response should be "
        "of the form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
        f"\n\nHow many are {index}?\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": question, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(answer or index), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"9a9b6eb4-{index:04}-{copy:04}"},
    }


# ---- each set ----------------------------------------------------------------------------------


def test_dapo_has_unique_questions_and_adds_no_template(folder, caplog):
    """Also where a whole batch of rows repeats earlier ones."""
    rows = [dapo_row(index, copy=copy) for copy in range(400) for index in range(50)]
    rows.append(dapo_row(3, answer=4))
    write_parquet(folder / "dapo-math-17k.parquet", rows)
    with caplog.at_level(logging.INFO):
        problems = load("dapo-math-17k")
    assert [problem.answer for problem in problems] == [str(index) for index in range(50)]
    assert "19951 rows with repeated questions were left out" in caplog.text
    template = DataConfig(source="dapo-math-17k").template
    assert format_prompt(template, problems[7]) == rows[7]["prompt"][0]["content"]


def test_processed_dapo_uses_the_questions_with_instructions(folder):
    row = dapo_row(1)
    rows = [{**row, "prompt": "How many are 1?", "source_prompt": row["prompt"], "solution": "1"}]
    write_parquet(folder / "dapo-math-17k" / "train-00000-of-00001.parquet", rows)
    (problem,) = load("dapo-math-17k")
    assert (problem.prompt, problem.answer) == (row["prompt"][0]["content"], "1")


@pytest.mark.parametrize("write", [write_lines, write_parquet])
def test_gsm8k_has_both_splits_and_answers_without_commas(folder, write):
    suffix = "jsonl" if write is write_lines else "parquet"
    (folder / "gsm8k").mkdir()
    steps = "He has 9 * 2 = <<9*2=18>>18.\n#### "
    train = [{"question": "How many?", "answer": f"{steps}1,018"}]
    test = [{"question": "How much?", "answer": f"{steps}-18"}]
    write(folder / "gsm8k" / f"train.{suffix}", train)
    write(folder / "gsm8k" / f"test.{suffix}", test)
    assert [problem.answer for problem in load("gsm8k")] == ["1018"]
    assert [problem.answer for problem in load("gsm8k", "test")] == ["-18"]


# ---- names -------------------------------------------------------------------------------------


def test_hub_is_used_for_a_split_without_a_file(folder, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    for part, count in (("train", 3), ("test", 2)):
        rows = [{"question": f"{part} {i}?", "answer": f"#### {i}"} for i in range(count)]
        write_parquet(folder / "stand-in" / f"{part}.parquet", rows)
    hub = {part: HubSource(str(folder / "stand-in"), split=part) for part in ("train", "test")}
    changed = replace(NAMED_SOURCES["gsm8k"], hub=hub)
    monkeypatch.setitem(NAMED_SOURCES, "gsm8k", changed)
    assert len(load("gsm8k")) == 3
    assert len(load("gsm8k", "test")) == 2
    write_lines(folder / "gsm8k.jsonl", [{"question": "mine", "answer": "#### 1"}])
    assert [problem.prompt for problem in load("gsm8k")] == ["mine"]
    assert len(load("gsm8k", "test")) == 2  # one file has no test split
    monkeypatch.delenv("RLOBJ_DATA_DIR")
    assert len(load("gsm8k")) == 3


def test_columns_of_the_user_have_priority_and_must_exist(folder):
    write_lines(folder / "deepscaler.jsonl", [{"problem": "A?", "answer": "1", "mine": "B?"}])
    assert load("deepscaler", columns=Columns(prompt="mine"))[0].prompt == "B?"
    with pytest.raises(DataError, match=r"no column 'mien'.*Did you mean 'mine'"):
        load("deepscaler", columns=Columns(prompt="mien"))


def test_error_without_the_hub_names_the_file_to_give(folder):
    with pytest.raises(DataError, match=r"openai/gsm8k/main\[train\].*(?s:.)*RLOBJ_DATA_DIR=DIR"):
        load("gsm8k")
    with pytest.raises(DataError, match=r"no split 'test'.*data\.test_fraction=0\.1"):
        load("deepscaler", "test")
    with pytest.raises(DataError, match=r"mean 'gsm8k'\?"):
        load("gsm8")
