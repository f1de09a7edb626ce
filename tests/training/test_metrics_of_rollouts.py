"""Rollouts of several rows: metrics and sample tables count each once."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace

import pyarrow.parquet as parquet
import pytest

from rlobj.data import Problem
from rlobj.objectives.statistics import SingleProcess
from rlobj.ranks import ProcessGroup
from rlobj.rewards import Graded
from rlobj.runs.recorder import write_samples
from rlobj.samplers import Response
from rlobj.samplers.response import ROWS, ToolUse, TurnRecord, rollouts_of, whole
from rlobj.training.loop.metrics import rollout_metrics
from rlobj.training.rollouts.collector import Rollout


def row(rollout: int, k: int, began: str, turns: dict[int, int], reward: float, end: str = "done"):
    """A row; a group has two rollouts, and `turns` has the number of each turn with its tokens."""
    records = [
        TurnRecord(size, f"t{number}", array("i"), uses=(ToolUse("add"),), number=number)
        for number, size in turns.items()
    ]
    records[-1] = TurnRecord(**{**vars(records[-1]), "end": end})
    size = sum(turns.values())
    correct = None if math.isnan(reward) else reward > 0.5
    return Response(
        [1, k],
        [2] * size,
        [-0.5] * size,
        records[-1].text,
        "length" if end in ("turns", "tokens") else "stop",
        0,
        turns=records,
        began=began,  # type: ignore[arg-type]
        id=rollout + k * ROWS,
        group=rollout // 2,
        problem=Problem("p", "1+1=", "2"),
        grade=Graded(reward, correct, "", None),
    )


ROWS_OF_STEP = [
    # a turn that calls a sub-agent of two turns (the second row), and a restart
    row(0, 0, "", {0: 3, 3: 1}, 1.0, ""),
    row(0, 1, "call", {1: 2, 2: 2}, 1.0),
    row(0, 2, "restart", {4: 5}, 1.0),
    row(1, 0, "", {0: 4}, 0.0),
    row(2, 0, "", {0: 1}, 0.0, ""),
    row(2, 1, "restart", {1: 2}, 0.0, "turns"),
    row(3, 0, "", {0: 7}, math.nan),
]
LINE = rollout_metrics(Rollout(ROWS_OF_STEP, [], 1, {}, {}), SingleProcess())  # type: ignore[arg-type]


def test_a_rollout_has_the_turns_of_all_rows_in_order_and_the_end_of_its_last_row():
    rows, *_ = rollouts_of(ROWS_OF_STEP)
    rollout = whole(rows)
    assert [(t.number, t.row, t.began) for t in rollout.turns] == [
        (0, 0, ""),
        (1, 1, "call"),
        (2, 1, "call"),
        (3, 0, ""),
        (4, 2, "restart"),
    ]
    assert (rollout.length, rollout.text, rollout.finish, rollout.id) == (13, "t4", "stop", 0)
    assert whole(rows[:1]) is rows[0]
    assert whole(rows[:2]).text == "t3"  # a sub-agent's text is not the rollout's


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward/mean", 1 / 3),
        ("reward/accuracy", 1 / 3),
        ("reward/undecided", 1),
        ("response/count", 4),
        ("response/length_mean", 27 / 4),
        ("response/truncated", 1 / 4),
        ("groups/without_signal", 1),
        ("turns/mean", 9 / 4),
        ("turns/at_turns", 1 / 4),
        ("tools/calls", 9),
        ("tools/used_share", 1),
        ("rollout/rows", 7 / 4),
        ("rollout/tokens", 27 / 4),
        ("tokens/sampled", 27),
    ],
)
def test_metrics_count_a_rollout_of_several_rows_once(name, value):
    assert LINE[name] == pytest.approx(value)


def test_rows_are_counted_only_where_a_rollout_has_several():
    alone = rollout_metrics(Rollout([ROWS_OF_STEP[3]], [], 1, {}, {}), SingleProcess())  # type: ignore[arg-type]
    assert not [name for name in alone if name.startswith("rollout/")]


def test_sample_tables_have_the_rows_of_a_rollout_together_with_what_began_each(tmp_path):
    class Alone(SingleProcess):
        def gather(self, value):
            return [value]

    for step, rows in enumerate((ROWS_OF_STEP, [ROWS_OF_STEP[3]]), 1):
        write_samples(tmp_path, step, rows, len(rows), Alone())  # type: ignore[arg-type]
    first, second = map(parquet.read_table, sorted(tmp_path.rglob("*.parquet")))
    assert first["rollout"].to_pylist() == [0, 0, 0, 1, 2, 2, 3]
    assert first["began"].to_pylist() == ["", "call", "restart", "", "", "restart", ""]
    assert first["id"].to_pylist()[:3] == [0, ROWS, 2 * ROWS]
    assert not {"rollout", "began", "versions"} & {*second.column_names}


def test_sample_tables_have_the_versions_of_a_response_that_several_weights_drew(tmp_path):
    mixed = replace(ROWS_OF_STEP[0], versions=((3, 1), (5, 3)), weight_version=5)
    write_samples(tmp_path, 1, [mixed, ROWS_OF_STEP[3]], 2, ProcessGroup())
    [table] = map(parquet.read_table, tmp_path.rglob("*.parquet"))
    assert table["versions"].to_pylist() == [[[3, 1], [5, 3]], None]
    assert table["weight_version"].to_pylist() == [5, 0]
