"""How a step grows: points along the axes, numbers put together, real ranks."""

from __future__ import annotations

from typing import Any

import pytest

from rlobj.benchmarking import processes, scaling
from rlobj.benchmarking.rollouts import PROMPT
from rlobj.benchmarking.scaling import AXES, points, to_table


def made(axis: str, value: int, seconds: list[float], **changes: Any) -> dict[str, Any]:
    row = {"tokens": 1000, "mib": 10.0, "balance": 1.0}
    return {"axis": axis, "value": value, "rounds": seconds, **row, **changes}


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    tokens = [made("tokens", n, [n / 1000], tokens=n) for n in (1024, 4096, 65536)]
    tokens[-1]["mib"] = 25.0
    return [
        *tokens,
        made("vocabulary", 1000, [1.0]),
        made("vocabulary", 32000, [8.0], mib=40.0),
        *(made("group", size, [2.0]) for size in (4, 64)),
        made("ranks", 1, [4.0, 3.0, 5.0]),
        made("ranks", 2, [2.0, 9.0, 2.2], balance=1.003),
    ]


@pytest.mark.parametrize("quick", [True, False])
def test_each_axis_changes_one_number_alone(quick):
    along = points(quick)
    assert list(along) == list(AXES)
    for axis, some in along.items():
        varied = {name for name in some[0] if len({point[name] for point in some}) > 1}
        assert varied == {"value", "responses" if axis == "tokens" else axis}
    for point in along["tokens"]:
        assert point["responses"] * (scaling.LENGTH + PROMPT) == point["value"]
    for point in along["group"]:
        assert point["responses"] % point["group"] == 0


def test_a_row_has_the_median_round_and_the_time_per_token(rows):
    table = to_table(rows, {})
    by = {(row["axis"], row["value"]): row for row in table.rows}
    assert by["ranks", 2]["seconds"] == 2.2
    assert by["N, tokens", 4096]["rate"] == pytest.approx(1.0)
    assert all(column.name in row for column in table.columns for row in table.rows)


def test_findings_say_what_grows_and_how_far(rows):
    rows[1]["rounds"] = [3 * 4.096]
    found = to_table(rows, {}).findings
    assert [finding.reached for finding in found] == [None, None, None, None, True]
    time, memory, vocabulary, group, ranks = (finding.text for finding in found)
    assert "the slowest is 3.00 times the fastest" in time
    assert "65,536 over 4,096: 2.50 times, of 16 times the tokens" in memory
    assert "8.0 times the time, 4.0 times the memory" in vocabulary
    assert "within 1.00 times" in group
    assert "55.0% of one process's CPU time" in ranks
    assert "1.0030" in ranks


def test_ranks_out_of_balance_are_told_as_missing_the_aim(rows):
    rows[-1]["balance"] = 1.011
    assert to_table(rows, {}).findings[-1].reached is False


@pytest.mark.slow
def test_a_picture_has_time_and_memory_of_each_axis(rows):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    scaling.draw(figure, to_table(rows, {}))
    assert len(figure.axes) == 2 * len(AXES)
    lines = [axes.get_lines()[0].get_ydata() for axes in figure.axes]
    assert list(lines[3]) == [4.0, 2.2]
    assert list(lines[4]) == [10.0, 10.0, 25.0]
    labels = [label.get_text() for label in figure.axes[4].get_xticklabels()]
    assert labels == ["1k", "4k", "64k"]


@pytest.mark.slow
def test_more_tokens_take_more_time_and_no_more_memory_than_a_micro_batch_does():
    some = points(quick=True)["tokens"][:2]
    less, more = processes.ask(scaling.MODULE, {"points": some, "rounds": 1})
    assert (less["tokens"], more["tokens"]) == (1024, 4096)
    assert more["rounds"][0] > 2 * less["rounds"][0] > 0
    assert 1 < more["mib"] < 2 * less["mib"]


@pytest.mark.slow
def test_two_ranks_share_the_tokens_of_a_rollout():
    alone, both = (
        {"value": n, "responses": 32, "group": 4, "vocabulary": 64, "ranks": n, "sigma": 0.8}
        for n in (1, 2)
    )
    [one] = processes.ask(scaling.MODULE, {"points": [alone], "rounds": 1})
    [two] = processes.ask(scaling.MODULE, {"points": [both], "rounds": 1})
    assert one["tokens"] == two["tokens"]
    assert one["balance"] == 1.0 < two["balance"] <= 1.05
    assert two["rounds"][0] < 0.9 * one["rounds"][0]
