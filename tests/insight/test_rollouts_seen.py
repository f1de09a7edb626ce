"""A run whose rollouts have several rows: samples, metrics, records, tables, page and replay."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_policy, build_tokenizer
from pyarrow import parquet
from runs import metrics

import rlobj
from rlobj import Call, Turn
from rlobj.insight.page.rows import read_rows
from rlobj.models.embedded import SCRATCHPAD_ALPHABET
from rlobj.runs.reading import read_records
from rlobj.runs.tables import read_tables

ALPHABET = SCRATCHPAD_ALPHABET + "?"
STEP = 2


class Game:
    """Two sub-agents after the first turn, a new context after the second, the end after the third;
    one rollout in three is done at once."""

    def reset(self, problem: Any) -> None:
        self.problem, self.turns = problem, 0

    def step(self, messages: Any) -> Turn:
        self.turns += 1
        text = messages[-1]["content"]
        if self.turns == 1 and len(text) % 3:
            calls = [[{"role": "user", "content": question}] for question in ("9*9=", "2*2=")]
            return Turn("0=", calls=[Call(messages) for messages in calls])
        if self.turns == 2:
            return Turn(restart=[{"role": "user", "content": self.problem.prompt + "1;"}])
        right = len(text) % 2 == 0
        return Turn(reward=float(right), done=True, correct=right)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings: dict[str, Any] = {
        **{"training.steps": STEP, "sampling.prompts_per_step": 6, "sampling.group_size": 3},
        **{"sampling.max_tokens": 40, "sampling.rollout_tokens": 200, "sampling.stop": [";"]},
        **{"evaluation.every": 0, "model.chat_template": False, "data.template": "{prompt}"},
        **{"output.samples_every": 1, "output.tables_every": STEP},
        **{"objective.drop": "turn_position < 1"},
    }
    rows = [{"prompt": f"{a}*7=", "answer": str(a * 7)} for a in range(10, 40)]
    given = {"model": build_policy(0, ALPHABET), "tokenizer": build_tokenizer(ALPHABET)}
    out = tmp_path_factory.mktemp("seen") / "run"
    named = {"data": rows, "environment": Game, "out": out, "settings": settings}
    return rlobj.train("grpo", **given, **named).path


def sampled(run: Path) -> list[list[dict[str, Any]]]:
    """The rows of each rollout in the sample table."""
    rows = parquet.read_table(run / f"samples/step-{STEP:06d}.parquet").to_pylist()
    return [list(those) for _, those in groupby(rows, lambda row: row["rollout"])]


def test_metrics_are_those_of_the_rollouts_in_the_sample_table(run: Path) -> None:
    rollouts, line = sampled(run), metrics(run)[-1]
    shapes = {tuple(row["began"] for row in rows) for rows in rollouts}
    assert {("",), ("", "call", "call", "restart")} <= shapes
    lengths = [sum(row["length"] for row in rows) for rows in rollouts]
    rewards = torch.tensor([rows[0]["reward"] for rows in rollouts]).double()
    assert len(rollouts) == line["response/count"] == 18
    assert line["rollout/rows"] == sum(map(len, rollouts)) / 18
    assert line["rollout/tokens"] == line["response/length_mean"] == sum(lengths) / 18
    assert line["reward/mean"] == pytest.approx(float(rewards.mean()))
    assert line["reward/std"] == pytest.approx(float(rewards.std(correction=0)))
    groups = [{r["reward"] for rows in rollouts[i : i + 3] for r in rows} for i in range(0, 18, 3)]
    assert line["groups/without_signal"] == sum(len(group) == 1 for group in groups)
    assert all(len({row["reward"] for row in rows}) == 1 for rows in rollouts)


def test_the_table_gives_rollouts_back_and_plans_the_same_weights(run: Path) -> None:
    of = {row["id"]: row for rows in sampled(run) for row in rows}
    [update] = read_tables(run, [STEP])
    table = update.table
    assert table.rollouts is not None
    assert table.rollouts.tolist() == [of[each]["rollout"] for each in table.ids.tolist()]
    assert update.began == [of[each]["began"] for each in table.ids.tolist()]
    plan = update.objective.plan([table], update.state)
    assert torch.equal(plan.weights[0], update.weights)
    assert "to the bit" in repr(rlobj.replay(run))
    alone = update.objective.plan([table.replace(rollouts=None)], update.state)
    assert not torch.equal(alone.weights[0], update.weights)


def test_records_and_the_page_have_the_rows_of_a_rollout_together(run: Path) -> None:
    of = {row["id"]: row for rows in sampled(run) for row in rows}
    tokens = read_records(run, steps=[STEP]).to_pylist()
    assert {row["began"] for row in tokens} == {None, "call", "restart"}
    for row in tokens:
        there = of[row["response"]]
        assert (row["rollout"], row["began"] or "") == (there["rollout"], there["began"])
    assert any("call" in repr(row) for row in rlobj.inspect(run).tokens.to_pylist())
    page = [row for row in read_rows(run).rows.to_pylist() if row["step"] == STEP]
    order = [each for each, _ in groupby(row["response"] for row in page)]
    assert order == [row["id"] for rows in sampled(run) for row in rows if row["length"]]
