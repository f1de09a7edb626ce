"""Columns of one's own: where they come from, that rules read them, and what is wrong with them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from runs import ROWS
from tiny import tiny_config

import rlobj
from rlobj import Objective, RunConfig, load_preset, read_tables
from rlobj.base.errors import ConfigError, DataError, RunError
from rlobj.insight.page.rows import read_rows
from rlobj.runs.tables import UpdateTable
from rlobj.settings.building import compose
from rlobj.settings.presets import merge
from rlobj.training import run_training
from rlobj.training.new_run import check_functions, prepared
from rlobj.training.resolving import ResolvedRun
from rlobj.training.rollouts import own_columns

CODE = """
import random
def score(response, answer, hard, **row):
    if response[:1].isdigit():
        return {"reward": None, "columns": {}}
    return {"reward": len(response) * hard, "columns": {"short": 1 / (1 + len(response))}}
def good(response, answer, **row): return len(response)
def many(response, answer, **_): return {"reward": 1, "correct": True, "columns": {"x": [1.0] * 9}}
def wrong(response, answer, **row): return {"reward": 1.0, "columns": {"x": float("nan")}}
def none(response, answer, **row): return {"reward": 1.0, "columns": {}}
def text(response, answer, **row): return {"reward": 1.0, "columns": {"x": "half"}}
def drawn(tokens, answer, hard, **row): return [random.random() + (x == answer) for x in tokens]
def one(tokens, answer, **row): return len(tokens)
def fails(tokens, answer, **row): return tokens[0] + 1
def long(tokens, answer, **row): return [1] * 7
def hangs(tokens, answer, **row):
    while True: pass
def ends(tokens, answer, **row): import os; os._exit(7)
def large(response, answer, **row): return {"reward": 1.0, "columns": {"x": 2**53 + 1}}
def large_of_tokens(tokens, answer, **row): return [-(2**53) - 1 for _ in tokens]
"""
OWN = {"hard": "data", "short": "reward", "drawn": "mine.py:drawn", "count": "mine.py:one"}
RULE = "when(hard > 0.5, 2, 1) + short + drawn + count"
HARD = [{**row, "hard": i / len(ROWS)} for i, row in enumerate(ROWS)]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions and the problems."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CODE)
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, HARD)))


def config_of(policy: Path, columns: dict[str, str] = OWN, **sections: Any) -> RunConfig:
    """Two steps, whose weights are made of the columns."""
    usual = {
        "columns": columns,
        "objective": {"reweight": RULE if columns is OWN else " + ".join(columns)},
        "rewards": {"kind": "custom", "target": "mine.py:score"},
        "data": {"source": "rows.jsonl", "template": "{prompt}"},
        "sampling": {"prompts_per_step": 4, "group_size": 4, "max_tokens": 3},
        "training": {"steps": 2},
        "output": {"tables_every": 1},
    }
    return prepared(tiny_config(policy, "grpo", **merge(usual, sections)))


def updates(run: Path) -> list[UpdateTable]:
    return list(read_tables(run, trust=True))


def test_rules_read_columns_of_rows_rewards_and_functions_of_tokens(policy, tmp_path):
    """The numbers are recorded, replayed, and shown on the page."""
    run, undecided = run_training(config_of(policy), tmp_path / "run").path, 0
    hard = {row["prompt"]: row["hard"] for row in HARD}
    for update in updates(run):
        table, own = update.table, update.table.columns
        decided, undecided = table.decided, undecided + int((~table.decided).sum())
        prompts = [build_tokenizer().decode(prompt) for prompt, _ in update.sequences]
        assert torch.equal(own["hard"], table.spread(torch.tensor([hard[x] for x in prompts])))
        assert torch.equal(own["count"], table.spread(table.lengths).float())
        assert torch.equal(own["short"].isnan(), ~decided)
        assert len(set(own["drawn"].tolist())) > len(table) / 2
        plain = update.objective.replace(reweight=None).plan([table], update.state).weights[0]
        number = torch.where(own["hard"] > 0.5, 2.0, 1.0) + own["short"] + own["drawn"]
        expected = torch.where(decided, plain * (number + own["count"]), 0)
        assert torch.allclose(update.weights, expected.float())
    assert undecided
    replayed = rlobj.replay(run, "(drawn > 0.5) & (hard > 0.2)", trust=True)
    assert 0 < replayed.objectives.to_pylist()[1]["touched"] < replayed.population
    assert "to the bit" in repr(replayed)
    page = read_rows(run).rows
    assert {*OWN} <= {*page.column_names}
    assert page["drawn"].null_count == 0


@pytest.mark.parametrize(
    ("columns", "sections", "message"),
    [
        ({"prob": "data"}, {}, "columns: expected new names such as 'stage' .* got 'prob'"),
        ({"spurious": "data"}, {}, "columns.spurious: the record has this column"),
        (
            {"hard": "dta"},
            {},
            r"columns.hard.*: expected data, reward or .* got 'dta'",
        ),
        ({"x": "reward"}, {"rewards": {"kind": "exact"}}, "columns: the reward exact returns none"),
        ({"x": "gone.py:f"}, {}, "there is no file 'gone.py'"),
        ({}, {"objective": {"reweight": "hard"}}, "unknown name 'hard'.* declare it in columns"),
        (
            {},
            {"objective": {"columns": ["hard"], "reweight": "hard"}},
            "nothing says where the column 'hard' comes from: use columns.hard=data",
        ),
    ],
)
def test_wrong_columns_are_refused_before_anything_is_read(policy, columns, sections, message):
    with pytest.raises(ConfigError, match=f"(?is){message}"):
        config_of(policy, columns, **sections)


NO_NUMBER = ({"hard": None}, {"hard": math.nan}, {"hard": [1, 2]})


@pytest.mark.parametrize("row", [{}, {"hard": "half"}, {"hard": 2**53 + 1}, *NO_NUMBER])
def test_a_row_without_the_number_is_named_before_the_run(policy, tmp_path, row):
    rows = [*HARD[:3], {**ROWS[3], **row}]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    message = r"columns\.hard=data: 'hard' of problem '\w+' is no number"
    config = config_of(policy, {"hard": "data"}, rewards={"kind": "exact"})
    with pytest.raises(DataError, match=message):
        check_functions(ResolvedRun(config, tmp_path))
    with pytest.raises(DataError, match=message):
        run_training(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("columns", "rewards", "message"),
    [
        ("reward", ["many"], r"many returned as the column 'x' 9 values, \[1.* each of \d tokens?"),
        ("reward", ["wrong"], "mine.py:wrong returned as .* 1 value, nan, on problem '"),
        ("reward", ["none"], "mine.py:none returned as .* 'x' 1 value, None, .*Expected a finite"),
        ("reward", ["text"], "mine.py:text returned .* columns are numbers by name"),
        ("reward", ["large"], r"mine.py:large returned .* whole ones of at most 2\^53"),
        ("mine.py:large_of_tokens", ["good"], "-9007199254740993 is a whole number above"),
        ("reward", ["many", "many"], "Reward b: one before it returns 'x' as well"),
        ("mine.py:fails", ["good"], r"fails failed on problem .*: TypeError.*\n  at .*mine"),
        ("mine.py:long", ["good"], "mine.py:long returned as the column 'x' 7 values"),
        ("mine.py:hangs", ["good"], "hangs failed on problem .*did not answer within 0.5 seconds"),
        ("mine.py:ends", ["good"], "ends failed on problem .*ended its process with .*status 7"),
    ],
)
def test_a_wrong_value_ends_the_run_with_its_function(
    policy, tmp_path, monkeypatch, columns, rewards, message
):
    monkeypatch.setattr(own_columns, "DEADLINE", 0.5)
    of = [{"kind": "custom", "target": f"mine.py:{function}"} for function in rewards]
    several = [{**each, "name": name} for each, name in zip(of, "ab", strict=False)]
    own = {"kind": "several", "of": several} if len(of) > 1 else of[0]
    config = config_of(policy, {"x": columns}, rewards=own)
    with pytest.raises((RunError, ConfigError), match=f"(?s){message}"):
        run_training(config, tmp_path / "run")


def test_gigpo_asks_where_the_states_of_its_turns_come_from():
    message = "nothing says where the column 'state' comes from: use columns.state=data"
    with pytest.raises(ConfigError, match=message):
        prepared(compose("gigpo", [("the test", {"data": {"source": "calculator"}})]))


def test_a_preset_names_columns_and_another_layer_changes_them():
    Path("own.yaml").write_text(
        "base: grpo\ncolumns: {drawn: 'mine.py:drawn', hard: data}\n"
        "data: {columns: {answer: 'the: answer'}}\nobjective: {reweight: drawn + hard}\n"
    )
    assert load_preset("./own.yaml").objective.columns == {"drawn": "token", "hard": "token"}
    config = compose(
        "own.yaml",
        [
            (
                "x",
                {
                    "columns": {"drawn": None, "late": "data"},
                    "objective": {"reweight": "hard + late"},
                },
            )
        ],
    )
    assert config.columns == {"hard": "data", "late": "data"}
    assert config.objective.columns == {"hard": "token", "late": "token"}
    given = RunConfig(objective=Objective(columns=["late"], drop="late > 0"), columns=OWN)
    assert given.objective.columns == dict.fromkeys(["late", *OWN], "token")
