"""RUN/tables/: every token of an update, from which the objective is planned again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from runs import ranks, write_config
from test_recorder import observed_of, recorded
from tiny import tiny_config

from rlobj import ConfigError, Objective, TokenBatch
from rlobj.insight.opening import observed_again
from rlobj.objectives.tokens import PER_TOKEN
from rlobj.runs.observed import POLICY, ObservedUpdate
from rlobj.runs.tables import read_tables, write_tables
from rlobj.training import run_training
from rlobj.training.loop.trainer import Trainer

TWO_REWARDS = [
    {"name": "right", "kind": "exact"},
    {"name": "short", "kind": "custom", "weight": 0.5, "target": "PATH:short"},
]
SHORT = """
def short(response, answer, **columns):
    return None if response.startswith("1") else float(len(response) < 3)
"""
CASES = {
    "stare": {"objective": {"controllers": {"W": {"kind": "gate", "target": 9.0, "on": 1.1}}}},
    "ar-lopti": {},
    "gdpo": {},
    "20-entropy": {"training": {"selection": "old", "updates_per_step": 3}},
    "lp-reg": {},
    "clip-cov": {},
    "gspo": {"training": {"updates_per_step": 3}},
    "dapo-loss": {"training": {"updates_per_step": 1}},
}


def config_of(policy: Path, folder: Path, preset: str):
    sections = {"output": {"tables_every": 2}, **CASES[preset]}
    training = {"steps": 3, "updates_per_step": 2, "learning_rate": 1e-3}
    sections["training"] = {**training, **sections.get("training", {})}
    if preset == "gdpo":
        (folder / "rewards.py").write_text(SHORT)
        text = json.dumps(TWO_REWARDS).replace("PATH", str(folder / "rewards.py"))
        sections["rewards"] = json.loads(text)
    return tiny_config(policy, preset, **sections)


def planned(run: Path) -> dict[int, list]:
    """Checks that each recorded objective plans its weights again; the updates by step."""
    found: dict[int, list] = {}
    for update in read_tables(run):
        plan = update.objective.plan([update.table], update.state, clauses=True)
        assert torch.equal(plan.weights[0], update.weights)
        assert torch.equal(plan.clauses.codes, update.codes)
        assert plan.clauses.causes == update.causes
        found.setdefault(update.step, []).append(update)
    return found


@pytest.mark.parametrize(
    "preset",
    [*list(CASES)[:4], *(pytest.param(x, marks=pytest.mark.slow) for x in list(CASES)[4:])],
)
def test_the_recorded_objective_plans_the_recorded_weights_again(
    policy, tmp_path, monkeypatch, preset
):
    seen = []
    after = Trainer.after_update

    def note(trainer, index, batch, observed, metrics):
        seen.append((trainer.learner.steps + 1, index + 1, observed))
        after(trainer, index, batch, observed, metrics)

    monkeypatch.setattr(Trainer, "after_update", note)
    config = config_of(policy, tmp_path, preset)
    run_training(config, tmp_path / "run")
    found = planned(tmp_path / "run")
    assert list(found) == [2, 3]  # every second, and the last
    written = [(step, update) for step, updates in found.items() for update in updates]
    right = [each for each in seen if each[0] in (2, 3)]
    assert len(written) == len(right)
    for (step, update), (own, number, observed) in zip(written, right, strict=True):
        assert (step, update.update) == (own, number)
        assert torch.equal(update.weights, observed.plan.weights[0])
        assert torch.equal(update.codes, observed.plan.clauses.codes)
        assert update.state == observed.state
        assert update.objective == observed.objective
        assert [tuple(map(list, pair)) for pair in observed.sequences] == update.sequences
        table, theirs = update.table, observed.table
        for name in ("lengths", "groups", "ids", "rewards", "advantages"):
            ours, right_column = getattr(table, name), getattr(theirs, name)
            assert ours.dtype == right_column.dtype
            assert torch.equal(ours.nan_to_num(7), right_column.nan_to_num(7)), name
        for name in PER_TOKEN:
            column = getattr(theirs, name)
            if name in ("logprobs", "entropy", "collision", "entropy_sensitivity"):
                column = column if config.training.selection == "old" else getattr(observed, name)
            if column is None:
                assert getattr(table, name) is None
            else:
                assert torch.equal(getattr(table, name).nan_to_num(7), column.nan_to_num(7)), name


@pytest.mark.slow
def test_two_processes_write_tables_that_plan_the_same_weights(policy, tmp_path):
    file = write_config(config_of(policy, tmp_path, "clip-cov"), tmp_path / "run.yaml")
    run = tmp_path / "run"
    ranks(["train", "--config", file, "--out", run])
    assert list(planned(run)) == [2, 3]
    (run / "tables" / "step-000002-rank-1.parquet").unlink()
    with pytest.raises(ConfigError, match=r"step-000002-rank-1.parquet is missing: 2 processes"):
        list(read_tables(run))


def test_a_process_without_responses_writes_a_part_without_rows(tmp_path):
    observed = observed_of("stapo")
    nothing = observed.table.select([])
    plan = observed.objective.plan([nothing], observed.state, clauses=True)
    none = torch.zeros(0)
    empty = ObservedUpdate(observed.objective, {"update": 0}, nothing, plan, [], *[none] * 4)
    for rank, part in enumerate((observed, empty)):
        write_tables(tmp_path, 7, [(1, part)], (rank, 2), {})
    [update] = read_tables(tmp_path)
    assert (update.step, len(update.table)) == (7, len(observed.table))
    assert torch.equal(update.table.lengths, observed.table.lengths)
    assert (update.table.lengths == 0).any()
    assert update.table.rewards.isnan().any()
    plan = update.objective.plan([update.table], update.state)
    assert torch.equal(plan.weights[0], observed.plan.weights[0])


def test_tables_and_records_keep_the_rows_of_rollouts_and_what_began_them(tmp_path):
    """The rows of a rollout lie apart in the table, and together in the record."""
    observed = observed_of("stapo")
    table, first, began = observed.table, dict[tuple[int, float], int](), list[str]()
    pairs = [*zip(table.groups.tolist(), table.rewards.nan_to_num(7).tolist(), strict=True)]
    for pair, number in zip(pairs, table.ids.tolist(), strict=True):
        began.append("restart" if pair in first else "")
        first.setdefault(pair, number)
    rollouts = torch.tensor([first[pair] for pair in pairs])
    table = table.replace(rollouts=rollouts, turn=None, turn_reward=None)
    several = replace(observed, table=table, began=began)
    write_tables(tmp_path, 1, [(1, several)], (0, 1), {})
    [update] = read_tables(tmp_path)
    assert torch.equal(update.table.rollouts, rollouts)
    assert update.table.rollouts.dtype == torch.int64
    assert update.began == observed_again(update).began == began
    rows = recorded(tmp_path, several).rows(["response", "rollout", "began"]).to_pylist()
    at = {number: place for place, number in enumerate(table.ids.tolist())}
    for row in rows:
        assert row["rollout"] == rollouts[at[row["response"]]]
        assert row["began"] == (began[at[row["response"]]] or None)
    order = [(row["rollout"], row["response"]) for row in rows]
    assert order == sorted(order)
    assert "restart" in {row["began"] for row in rows}


@pytest.mark.parametrize("version", [None, 9])
def test_tables_and_records_keep_the_version_of_each_token(tmp_path, version):
    observed = observed_of("stapo", drop="staleness > 2")
    versions = torch.arange(len(observed.table)) // 5 % 6
    table = observed.table.replace(versions=versions, version=version)
    plan = observed.objective.plan([table], observed.state, clauses=True)
    mixed = replace(observed, table=table, plan=plan)
    write_tables(tmp_path, 1, [(1, mixed)], (0, 1), {})
    [update] = read_tables(tmp_path)
    assert (update.table.versions.tolist(), update.table.version) == (versions.tolist(), version)
    again = update.objective.plan([update.table], update.state)
    assert torch.equal(again.weights[0], plan.weights[0])
    staleness = table.column("staleness", "the test")
    starts = dict(zip(table.ids.tolist(), table.starts.tolist(), strict=True))
    rows = recorded(tmp_path, mixed).rows(["response", "position", "staleness"]).to_pylist()
    assert {row["staleness"] for row in rows} > {4, 5}
    for row in rows:
        assert row["staleness"] == staleness[starts[row["response"]] + row["position"]]


def test_numbers_of_tokens_are_read_as_such_if_there_are_as_many_responses(tmp_path):
    mask, values = torch.tensor([[1, 1], [0, 0], [1, 0]]), torch.tensor([[5, 1], [0, 0], [2, 0]])
    facts: Any = {"ids": [0, 1, 2], "staleness": values, "advantages": values - 2.0}
    table = TokenBatch.from_padded(mask, -1.0 * mask, **facts)
    objective = Objective(drop="staleness > 3")
    plan, unknown = objective.plan([table], clauses=True), torch.full((3,), torch.nan)
    sequences = [([1], [2] * length) for length in table.lengths.tolist()]
    columns: Any = dict.fromkeys(POLICY, unknown) | {"logprobs": table.logprobs}
    update = ObservedUpdate(objective, {}, table, plan, sequences, **columns)
    write_tables(tmp_path, 1, [(1, update)], (0, 1), {})
    [read] = read_tables(tmp_path)
    assert read.table.staleness.tolist() == [5, 1, 2]
    assert read.table.advantages.tolist() == [3, -1, 0]
    assert torch.equal(objective.plan([read.table]).weights[0], plan.weights[0])


def test_a_table_without_rollouts_has_no_column_of_them(tmp_path):
    write_tables(tmp_path, 1, [(1, observed_of("stapo"))], (0, 1), {})
    [update] = read_tables(tmp_path)
    assert (update.table.rollouts, update.began) == (None, ())
    names = parquet.read_schema(tmp_path / "tables/step-000001-rank-0.parquet").names
    assert not {"rollout", "began"} & {*names}


def test_code_that_an_objective_names_is_not_imported(policy, tmp_path):
    imported, code = tmp_path / "imported", tmp_path / "mine.py"
    code.write_text(
        "from pathlib import Path\n"
        "from rlobj.objectives.surrogates import Unclipped\n"
        f"Path({str(imported)!r}).touch()\n"
        "class Mine(Unclipped):\n    pass\n"
    )
    objective = {"surrogate": {"kind": "custom", "target": f"{code}:Mine"}}
    settings = {"objective": objective, "training": {"steps": 1}, "output": {"tables_every": 1}}
    run_training(tiny_config(policy, "dapo-loss", **settings), tmp_path / "run")
    imported.unlink()
    with pytest.raises(ConfigError, match=r"name code by its path.*trust=True"):
        list(read_tables(tmp_path / "run"))
    assert not imported.exists()
    [update] = read_tables(tmp_path / "run", trust=True)
    assert type(update.objective.surrogate).__name__ == "Mine"
