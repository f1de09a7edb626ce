"""`rlobj.inspect`: counts, estimates, groups and examples of recorded tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from record_rows import dropped, write_records

import rlobj
from rlobj.base.errors import ConfigError


def named(table, key: str) -> dict:
    return {row[key]: row for row in table.to_pylist()}


def test_touched_tokens_are_counted_by_text_effect_and_clause(tmp_path: Path) -> None:
    rows = [dropped("2"), dropped("2"), dropped("3"), {"text": "2"}]
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
    assert (found.count, found.population, found.estimated) == (4, 5, False)
    assert not found.exact
    assert rlobj.inspect(tmp_path, dropped=True).count == 3


def test_a_thinned_record_gives_estimates_with_their_standard_error(tmp_path: Path) -> None:
    rows = [dropped("a", inclusion_probability=0.25, prob=0.0)] * 3 + [dropped("a", prob=0.5)]
    write_records(tmp_path, rows)
    [group] = rlobj.inspect(tmp_path).groups.to_pylist()
    assert (group["recorded"], group["tokens"]) == (4, 13)
    assert group["standard_error"] == pytest.approx(math.sqrt(3 * 0.75 / 0.25**2))
    assert group["prob"] == pytest.approx(0.5 / 13)  # weighted: 12 tokens of 0 and one of 0.5
    assert rlobj.inspect(tmp_path).estimated


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
    for i, part in enumerate((rows[:9], rows[9:])):
        write_records(tmp_path, part, f"rank-{i}")
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


def test_mixed_examples_have_each_effect_though_one_has_larger_groups(tmp_path: Path) -> None:
    rows = [{"text": text, "effect": "reweighted", "factor": 2.0} for text in "aabbccdd"]
    write_records(tmp_path, [*rows, dropped("x"), dropped("y")])
    found = rlobj.inspect(tmp_path)
    assert {row["effect"] for row in found.examples(3)} == {"reweighted"}
    assert {row["text"] for row in found.examples(3, mixed=True)} == {"a", "b", "x"}


def test_the_population_is_the_count_of_the_metrics(tmp_path: Path) -> None:
    write_records(tmp_path, [dropped(step=step) for step in (2, 3)])
    lines = [{"step": step, "tokens/step": 10.0 * step} for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = rlobj.inspect(tmp_path)
    assert (found.population, found.exact, found.steps) == (60, True, (1, 3))
    assert "2 (3.3%) of 60 tokens" in found.total
    assert rlobj.inspect(tmp_path, step=2).population == 20


def test_a_step_is_read_alone_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    write_records(tmp_path, [dropped(step=step) for step in (3, 4, 4)])
    found = rlobj.inspect(tmp_path, step=4)
    assert (found.count, found.steps) == (2, (4, 4))
    with pytest.raises(ConfigError, match=r"step 7.*steps 3 to 4"):
        rlobj.inspect(tmp_path, step=7)


def test_where_selects_touched_and_untouched_tokens(tmp_path: Path) -> None:
    rows = [dropped("a", prob=0.001), {"text": "b", "prob": 0.01, "inclusion_probability": 0.5}]
    write_records(tmp_path, [*rows, {"text": "c", "prob": 0.9}])
    found = rlobj.inspect(tmp_path, where="prob < 0.1")
    assert {name: row["tokens"] for name, row in named(found.clauses, "effect").items()} == {
        "dropped": 1,
        "untouched": 2,
    }
    assert rlobj.inspect(tmp_path, where="prob < 0.1", dropped=True).count == 1
    assert rlobj.inspect(tmp_path, where="prob > 2").unknown


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
    found = rlobj.inspect(tmp_path, where=where).groups["text"].to_pylist()
    assert sorted(found) == sorted(texts)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("entropy.bottom(0.8)", "depends on other tokens of the update"),
        ("(prob < 0.1) & (reward.mean(by='group') > 0)", "only a sample"),
        ("prob < TAU", "no column 'TAU'"),
        ("spurios > 0", "Did you mean 'spurious'"),
        ("spurious > 0", "is unknown for all tokens"),
        ("text == 'a'", "text=TEXT"),
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
