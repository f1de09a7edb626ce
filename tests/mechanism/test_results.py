"""The results of the measurements, and what docs/stability.md says about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.harness import ROOT
from benchmarks.stability.conditions import GROUPS
from benchmarks.stability.mechanism import pages, pictures
from benchmarks.stability.mechanism.batches import POLICIES
from benchmarks.stability.mechanism.parts import PARTS

RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return json.loads((RESULTS / "mechanism.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def row(found: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    def one(part: str, **wanted: Any) -> dict[str, Any]:
        rows = found[part]["rows"]
        [only] = [each for each in rows if wanted.items() <= each.items()]
        return only

    return one


def test_the_tables_are_those_of_the_results(found: dict[str, Any]) -> None:
    assert found.keys() == {*PARTS, "command"}
    text = (RESULTS / "mechanism.md").read_text(encoding="utf-8")
    for name, make in pages.TABLES.items():
        assert f"## {name}\n\n{make(found)}\n" in text


def test_planted_tokens_carry_an_outsized_and_small_share(found: Any, row: Any) -> None:
    for kind, (mean, least, most), share in (
        ("prepared", (15, 10, 23), 0.15),
        ("sharp", (25, 21, 38), 0.10),
    ):
        rare = row("carried", policy=kind, rate=1e-4)
        assert rare["tokens"] == 1
        assert pictures.measured_rate(found, rare) == pytest.approx(8e-5, rel=0.01)
        times = pages.times(found, rare)
        assert [round(x) for x in (sum(times) / 8, min(times), max(times))] == [mean, least, most]
        assert rare["parameters"] < 0.01
        assert max(rare["parameters_each"]) < 0.0145
        many = row("carried", policy=kind, rate=1e-2)
        assert many["parameters"] == pytest.approx(share, abs=0.005)


def test_planted_tokens_are_less_likely_than_sampled_ones_and_found_more_often(row: Any) -> None:
    for kind, recalls in (("prepared", (0.58, 0.17)), ("sharp", (0.61, 0.32))):
        planted, sampled = (row("sources", policy=kind, source=s) for s in ("planted", "sampled"))
        assert 10 * planted["prob"] < sampled["prob"]
        assert [round(each["recall"], 2) for each in (planted, sampled)] == [*recalls]
        assert sampled["precision"] == 1


def test_lopti_differs_in_single_rollouts_and_not_on_average(row: Any) -> None:
    for name in ("lopti", "ar-lopti"):
        base = row("update", policy="sharp", condition="dapo-loss")["each"]
        apart = [
            a - b
            for a, b in zip(
                row("update", policy="sharp", condition=name)["each"], base, strict=True
            )
        ]
        assert min(apart) < -0.02 < 0.02 < max(apart)
        assert max(map(abs, apart)) == pytest.approx(0.03, abs=0.003)
        assert abs(sum(apart) / 4) < 0.005


def test_what_one_update_does(row: Any) -> None:
    for kind in POLICIES:

        def apart(name: str, kind: str = kind) -> float:
            base = row("update", policy=kind, condition="dapo-loss")["planted"]
            return row("update", policy=kind, condition=name)["planted"] - base

        perfect = apart("perfect rule")
        assert perfect == pytest.approx(-0.03, abs=0.004)
        assert apart("stapo") / perfect == pytest.approx(0.5, abs=0.07)
        assert 0.55 < apart("stapo, any entropy") / perfect < 0.95
        assert 0.25 < apart("20-entropy") / perfect < 0.55
        assert abs(apart("random") / perfect) < 0.04
        assert apart("stare") > 0
        each = row("update", policy=kind, condition="dapo-loss")["each"]
        assert min(each) < 0 < max(each)


def test_which_tokens_the_rules_find(row: Any) -> None:
    for kind, gain, cost in (("prepared", 0.01, 0.10), ("sharp", 0.08, 0.31)):
        rule = row("rules", policy=kind, rate=1e-2, set="stapo")
        two = row("rules", policy=kind, rate=1e-2, set="A > 0, rare")
        assert rule["precision"] - two["precision"] == pytest.approx(gain, abs=0.006)
        assert two["recall"] - rule["recall"] == pytest.approx(cost, abs=0.006)
        assert row("rules", policy=kind, rate=1e-2, set="lp-reg")["tokens"] == 0
        assert row("rules", policy=kind, rate=1e-2, set="clip-cov")["recall"] == 0
        assert row("rules", policy=kind, rate=1e-2, set="stare")["recall"] == 1


def test_stapos_bounds_and_stares_quadrants(found: dict[str, Any], row: Any) -> None:
    for kind in POLICIES:
        bound = row("bounds", policy=kind)
        assert bound["error"] < 1e-12 < bound["slack"]
        assert 0.9 <= round(bound["vacuous"], 1) <= 1
        assert bound["tightness"] > 0.9
    rows = found["quadrants"]["rows"]
    assert all(each["own_signs"] == each["batches"] == 8 for each in rows)
    signs = {(each["policy"], each["quadrant"]): each["all_signs"] for each in rows}
    assert signs.pop(("sharp", "positive_surprising")) == 6
    assert signs.pop(("sharp", "negative_likely")) == 5
    assert set(signs.values()) == {8}
    for kind, factor in (("prepared", 3), ("sharp", 17)):
        ratios = [each["all"] / each["predicted"] for each in rows if each["policy"] == kind]
        assert max(ratios) / min(ratios) == pytest.approx(factor, abs=0.5)


def test_every_core_objective_has_short_runs_and_stapo_stops_the_letters(found, row):
    def letters(name: str, rate: float = 1e-2) -> list[float]:
        runs = [row("growth", condition=name, rate=rate, seed=seed) for seed in (0, 1)]
        return [each["letters"] for each in runs]

    base = letters("dapo-loss")
    assert [round(x, 1) for x in base] == [1.7, 4.1]
    assert max(letters("dapo-loss", 0.0)) < 0.45
    assert max(letters("stapo")) < 0.6
    assert max(letters("perfect rule")) < 0.4
    assert min(letters("random")) > 1
    assert all(len(letters(name)) == 2 for name in GROUPS["core"])
