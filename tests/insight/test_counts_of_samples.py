"""No count from a sample looks exact: estimates are marked, and what nothing tells is unknown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from record_rows import dropped, write_records
from tiny import tiny_config

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.insight.filtering import only_recorded, read_filter
from rlobj.insight.run_report.runs import read_runs
from rlobj.runs.reading import Design, read_records
from rlobj.training import run_training

WRONG = {"spurious": True, "prob": 0.001}


def other(p: float = 1.0, **columns: Any) -> dict[str, Any]:
    """An untouched token."""
    return {"inclusion_probability": p, **columns}


def recorded(
    run: Path,
    rows: list[dict[str, Any]],
    tokens: dict[int, int],
    halvings: int = 0,
    steps: list[int] | None = None,
    **metrics: float,
) -> Path:
    """A run whose steps have so many tokens, and whose record has these rows."""
    design = Design(halvings, 1, [*tokens] if steps is None else steps)
    write_records(run, rows, design=design)
    lines = [{"step": step, "tokens/step": n, **metrics} for step, n in tokens.items()]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return run


def test_a_rule_that_no_sampled_token_matches_has_an_unknown_count(tmp_path: Path) -> None:
    rows = [other(0.01, position=i, advantage=-1.0) for i in range(2)]
    run = recorded(tmp_path, rows, {1: 384})
    found = rlobj.inspect(run, where="advantage > 0")
    assert found.unknown
    assert found.estimated
    assert math.isnan(found.count)
    text = "tokens with advantage > 0: unknown: 2 of 384 tokens were recorded"
    assert found.total == text
    assert text in repr(found)
    read = json.loads(found.to_json())
    assert (read["unknown"], read["estimated"], read["recorded"]) == (True, True, 2)
    assert read["count"] is None
    assert read["at_most"] == pytest.approx(300, abs=0.1)


def test_a_share_that_the_metrics_have_is_shown_beside_it(tmp_path: Path) -> None:
    rows = [other(0.01, advantage=-1.0)]
    run = recorded(tmp_path, rows, {1: 300, 2: 100}, **{"advantage/positive_share": 0.25})
    found = rlobj.inspect(run, where="advantage > 0")
    assert found.known_share == 0.25
    assert found.answer.endswith("; metrics.jsonl has 25%")
    assert rlobj.inspect(run, where="advantage > 0.5").known_share is None
    assert rlobj.inspect(run, where="advantage > 0", text="7").known_share is None
    assert rlobj.inspect(run, where="advantage > 0", dropped=True).known_share is None


def test_touched_tokens_are_exact_in_a_sample_of_the_others(tmp_path: Path) -> None:
    run = recorded(tmp_path, [dropped(**WRONG), other(0.01)], {1: 500, 2: 500})
    assert rlobj.inspect(run).total == "touched tokens: 1 (0.10%) of 1,000 tokens"
    assert rlobj.inspect(run, step=2).total == "touched tokens: 0 of 500 tokens"
    assert rlobj.inspect(run, where="prob < 0.1", dropped=True).count == 1
    found = rlobj.inspect(run, where="(spurious > 0) & (kept > 0)")
    assert (found.estimated, found.count, found.standard_error) == (False, 0, 0)


@pytest.mark.parametrize(
    ("rule", "certain"),
    [
        ("(spurious > 0) & (prob < 0.1)", True),
        ("kept < 1", True),
        ("(prob < 0.1) & ((spurious > 0) | (kept < 1))", True),
        ("(spurious > 0) | (prob < 0.1)", False),
        ("spurious < 1", False),
        ("~(spurious > 0)", False),
        ("prob < 0.1", False),
    ],
)
def test_rules_about_spurious_or_dropped_tokens_need_no_sample(rule: str, certain: bool) -> None:
    assert only_recorded(read_filter(rule)) == certain


def test_touched_tokens_of_a_thinned_record_are_unknown_where_none_is_left(tmp_path: Path) -> None:
    rows = [other(0.0025, position=i) for i in range(9)]
    run = recorded(tmp_path, rows, {1: 4000}, halvings=2, **{"tokens/dropped": 8.0})
    found = rlobj.inspect(run)
    assert found.answer == "unknown, at most about 12 (0.30%): 9 of 4,000 tokens were recorded"
    assert rlobj.inspect(run, dropped=True).answer.endswith("metrics.jsonl has 0.20%")
    rows.append(dropped(inclusion_probability=0.25))
    found = rlobj.inspect(recorded(tmp_path, rows, {1: 4000}, halvings=2))
    assert (found.count, found.estimated, found.standard_error) == (4, True, math.sqrt(12))


def test_steps_that_the_record_lacks_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [dropped(step=1), dropped(step=3)]
    run = recorded(tmp_path, rows, {1: 10, 2: 10, 3: 10, 4: 10}, steps=[1, 3])
    found = rlobj.inspect(run)
    assert found.total == "touched tokens: 2 (10%) of 20 tokens"
    assert found.title.endswith("steps 1 to 3, without 2 steps that the record does not have")
    with pytest.raises(ConfigError, match="has no record of step 4"):
        rlobj.inspect(run, step=4)


def test_tokens_without_a_number_are_counted_as_unknown(tmp_path: Path) -> None:
    rows = [other(position=i, prob=p) for i, p in enumerate([0.01, 0.5, None, None])]
    found = rlobj.inspect(recorded(tmp_path, rows, {1: 4}), where="prob < 0.1")
    assert (found.count, found.undecided, found.estimated) == (1, 2, False)
    assert found.answer == (
        "1 (25%) of 4 tokens; unknown for 2, for which the record lacks a number"
    )
    found = rlobj.inspect(tmp_path, where="(prob < 0.1) & (advantage < 0)")
    assert found.undecided == 0, "the other part decides"


def test_a_report_says_that_shares_are_estimates(tmp_path: Path) -> None:
    lines = {"reward/mean": 0.5}
    for name, halvings in (("whole", 0), ("thinned", 1)):
        rows = [dropped(inclusion_probability=0.5**halvings), other(0.01, step=2)]
        recorded(tmp_path / name, rows, {1: 10, 2: 10, 3: 10}, halvings, [1, 2], **lines)
    whole, thinned = read_runs([tmp_path / "whole", tmp_path / "thinned"])
    note = "shares of touched tokens are estimates: the record has a sample of them"
    assert note not in whole.notes
    assert note in thinned.notes
    assert ["effect/dropped" in line for line in whole.lines] == [True, True, False]


@pytest.mark.parametrize("share", [None, 0.01])
def test_counts_of_a_run_are_those_of_its_full_tables(policy, tmp_path, share) -> None:
    output = {"records_share": share, "tables_every": 1}
    run = tmp_path / "run"
    run_training(tiny_config(policy, training={"steps": 2}, output=output), run)
    rules = ["advantage > 0", "prob < 0.05", "prob < 0.000001"]
    table = rlobj.replay(run, rules).objectives.to_pylist()
    truth = {row["name"]: row["touched"] for row in table}
    for rule in rules:
        found = rlobj.inspect(run, where=rule)
        if share is None:
            assert (found.count, found.estimated) == (truth[rule], False)
        else:
            assert found.estimated
            assert found.unknown or found.count > 0
            assert found.recorded < 50
    rows = len(read_records(run))
    assert (rows == rlobj.inspect(run).population) == (share is None)


@pytest.mark.parametrize("halvings", [0, 1])
def test_tokens_recorded_because_they_are_spurious_say_nothing_of_the_share(
    halvings: int, tmp_path: Path
) -> None:
    """All spurious tokens are in the record, and few of the others, or none."""
    sure = 0.5**halvings
    wrong = [other(sure, position=i, spurious=True, advantage=1.0) for i in range(2)]
    unjudged = [other(0.01, position=9, spurious=None, advantage=1.0)]
    found = rlobj.inspect(
        recorded(tmp_path / "few", [*wrong, *unjudged], {1: 384}, halvings), where="advantage > 0"
    )
    [clause] = found.clauses.to_pylist()
    assert (clause["spurious"], clause["judged"]) == (None, 0.0)
    assert "spurious" not in repr(found)
    right = [other(0.01, position=10 + i, spurious=False, advantage=1.0) for i in range(2)]
    found = rlobj.inspect(
        recorded(tmp_path / "more", [*wrong, *right], {1: 384}, halvings), where="advantage > 0"
    )
    [clause] = found.clauses.to_pylist()
    expected = (2 / sure) / (2 / sure + 200)
    assert clause["spurious"] == pytest.approx(expected, rel=1e-5)
