"""`rlobj.inspect`: counts, groups and examples of tokens."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from record_rows import dropped, write_records
from runs import metrics
from tiny import tiny_config

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.insight.filtering import matching, read_filter
from rlobj.runs.reading import read_records
from rlobj.runs.tables import read_tables
from rlobj.training import run_training


def named(table, key: str) -> dict:
    return {row[key]: row for row in table.to_pylist()}


def test_touched_tokens_are_counted_by_text_effect_and_clause(tmp_path: Path) -> None:
    rows = [dropped("2"), dropped("2"), dropped("3", spurious=True), {"text": "2"}]
    rows += [{"text": "2", "effect": "reweighted", "clause": "surprisal.top(0.1)", "factor": 1.1}]
    write_records(tmp_path, rows)
    found = rlobj.inspect(tmp_path)
    counts = [(r["text"], r["effect"], r["clause"], r["tokens"]) for r in found.groups.to_pylist()]
    assert counts == [
        ("2", "dropped", "prob < 0.002", 2),
        ("2", "reweighted", "surprisal.top(0.1)", 1),
        ("3", "dropped", "prob < 0.002", 1),
    ]
    clauses = named(found.clauses, "effect")
    assert {name: (row["tokens"], row["share"]) for name, row in clauses.items()} == {
        "dropped": (3, 0.6),
        "reweighted": (1, 0.2),
    }
    assert (clauses["dropped"]["judged"], clauses["dropped"]["spurious"]) == (1, 1.0)
    assert (found.count, found.population, found.complete) == (4, 5, True)
    assert rlobj.inspect(tmp_path, dropped=True).count == 3
    table = found._repr_markdown_().split("\n\n")[1].splitlines()
    assert [line.split(" | ")[:4] for line in table[2:]] == [
        ["| 2", "dropped", "prob \\< 0.002", "2"],
        ["| 2", "reweighted", "surprisal.top(0.1)", "1"],
        ["| 3", "dropped", "prob \\< 0.002", "1"],
    ]
    assert "|" not in rlobj.inspect(tmp_path, text="9")._repr_markdown_()


def test_above_the_limit_clauses_count_all_tokens_and_groups_those_in_the_record(tmp_path) -> None:
    write_records(tmp_path, [dropped("a"), dropped("b")], {1: 1000, 2: 1000}, more=98)
    found = rlobj.inspect(tmp_path)
    assert (found.count, found.recorded, found.complete) == (198, 2, False)
    assert found.total == "touched tokens: 198 (9.9%) of 2,000 tokens; 2 are recorded"
    assert found.lines() == ["dropped 198 (9.9%), by  prob < 0.002"]
    assert found.groups.select(["tokens", "recorded"]).to_pylist() == 2 * [
        {"tokens": None, "recorded": 1}
    ]
    found = rlobj.inspect(tmp_path, text="a")
    assert found.count is None
    assert found.total == "touched tokens 'a': 1 recorded"
    assert found.lines() == ["dropped 1 recorded, by  prob < 0.002"]


def test_means_leave_out_tokens_that_were_not_scored(tmp_path: Path) -> None:
    write_records(tmp_path, [dropped(prob=None, entropy=None), dropped(prob=0.5, entropy=None)])
    [group] = rlobj.inspect(tmp_path).groups.to_pylist()
    assert (group["prob"], group["entropy"], group["spurious"]) == (0.5, None, None)


def test_examples_are_the_newest_of_each_group(tmp_path: Path) -> None:
    rows = [
        dropped(text, step=step, response=i, before=f"{step}")
        for step in range(1, 9)
        for text in "ab"
        for i in range(2)  # the same context twice
    ]
    write_records(tmp_path, rows)
    tokens = rlobj.inspect(tmp_path, examples=2).tokens.to_pylist()
    found = [(row["step"], row["text"]) for row in tokens]
    assert sorted(found, reverse=True) == [(8, "b"), (8, "a"), (7, "b"), (7, "a")]
    assert [step for step, _ in found] == [8, 8, 7, 7]
    assert len(rlobj.inspect(tmp_path, examples=None).tokens) == 32
    assert len(rlobj.inspect(tmp_path, examples=0).tokens) == 0


def test_examples_are_those_that_were_changed_most(tmp_path: Path) -> None:
    rows = [{"effect": "reweighted", "factor": f, "before": f"{f}"} for f in (1.0, 0.7, 1.1)]
    write_records(tmp_path, [{**row, "step": 9 - i} for i, row in enumerate(rows)])
    tokens = rlobj.inspect(tmp_path, examples=2).tokens
    assert [round(each, 2) for each in tokens["factor"].to_pylist()] == [0.7, 1.1]


def test_a_step_is_read_alone_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    write_records(tmp_path, [dropped(step=step) for step in (3, 4, 4)])
    found = rlobj.inspect(tmp_path, step=4)
    assert (found.count, found.steps) == (2, (4,))
    with pytest.raises(ConfigError, match=r"step 7.*steps 3 to 4"):
        rlobj.inspect(tmp_path, step=7)


def test_a_rule_without_full_tables_is_refused_with_what_to_set(tmp_path: Path) -> None:
    write_records(tmp_path, [dropped("a", prob=0.001)], {1: 10})
    with pytest.raises(ConfigError, match=r"no full tables.*output\.tables_every=10"):
        rlobj.inspect(tmp_path, where="prob < 0.1", dropped=True)


RULES = ("prob < 0.05", "(prob < 0.5) & (advantage > 0)", "prob < 0.000001", "kept < 1")


def test_counts_of_a_run_are_those_of_all_its_tokens(policy, tmp_path: Path) -> None:
    """Of a record that has not all of them, and of one that has; counted by `replay`."""
    for most, complete in ((5, False), (10_000, True)):
        run = tmp_path / str(most)
        output = {"records": most, "tables_every": 1}
        objective = {"drop": "(prob < 0.05) | (entropy > 2.7)"}
        sections = {"training": {"steps": 2}, "output": output, "objective": objective}
        run_training(tiny_config(policy, "dapo-loss", **sections), run)
        truth = {row["name"]: row for row in rlobj.replay(run, RULES[:3]).objectives.to_pylist()}
        found = rlobj.inspect(run)
        assert (found.count, found.complete) == (truth["recorded"]["touched"], complete)
        assert found.count == sum(line["tokens/touched"] for line in metrics(run))
        fired = Counter[str]()
        for update in read_tables(run):
            fired.update(update.causes[code][1] for code in update.codes.tolist() if code >= 0)
        counts = {row["clause"]: row["tokens"] for row in found.clauses.to_pylist()}
        assert counts == {clause: n for clause, n in fired.items() if n}
        assert len(counts) == 2
        for rule in RULES:
            found = rlobj.inspect(run, where=rule)
            assert found.count == truth[rule if rule in truth else "recorded"]["touched"]
            assert found.recorded == found.count
            assert found.tabled


@pytest.mark.parametrize(
    ("where", "texts"),
    [
        ("prob < 0.002", "a"),  # as the run compares: in float32
        ("~(prob < 0.002)", "b"),  # undefined where prob is null
        ("surprisal > 1", "ab"),
        ("(kept < 1) & (spurious > 0)", "a"),
        ("response >= 20000001", "b"),  # ids are not rounded
        ("1 / (position - 1) > 0", "b"),  # undefined at position 1
        ("when(advantage > 0, entropy, 0) > 0.5", "ab"),
    ],
)
def test_where_reads_rows_as_rules_read_tokens(tmp_path: Path, where: str, texts: str) -> None:
    first = {"prob": 0.0019999999, "spurious": True, "response": 20_000_000, "position": 1}
    second = {"prob": 0.002, "spurious": False, "response": 20_000_001, "position": 2}
    unscored = {"prob": None, "entropy": None, "position": 0}
    write_records(
        tmp_path, [dropped("a", **first), {"text": "b", **second}, {"text": "c", **unscored}]
    )
    rows = read_records(tmp_path)
    found = rows.filter(matching(read_filter(where), rows))["text"].to_pylist()
    assert sorted(found) == sorted(texts)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("entropy.bottom(0.8)", "depends on other tokens"),
        ("(prob < 0.1) & (reward.mean(by='group') > 0)", "is judged by itself"),
        ("length > 3", "no column 'length'. To count on whole updates: rlobj replay"),
        ("prob < TAU", "no column 'TAU'"),
        ("spurios > 0", "Did you mean 'spurious'"),
        ("kept", "such as kept > 0"),
        ("prob", "is a number. Expected a rule"),
    ],
)
def test_where_that_a_record_cannot_answer_is_refused(tmp_path, where, message):
    write_records(tmp_path, [dropped()])
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace(")", r"\)")):
        rlobj.inspect(tmp_path, where=where)


def test_json_is_plain_ascii_and_has_null_for_what_is_unknown(tmp_path: Path) -> None:
    write_records(tmp_path, [dropped("\x1b[31m\u202e", prob=math.nan)])
    text = rlobj.inspect(tmp_path).to_json()
    assert text.isascii()
    assert "\x1b" not in text
    plain = json.loads(text)
    assert plain["groups"][0]["text"] == "\x1b[31m\u202e"
    assert plain["tokens"][0]["prob"] is None
