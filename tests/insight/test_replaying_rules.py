"""`rlobj.replay`: rules, sweeps, and what is said of wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
from replays import STAPO, batch, rows, update_of

import rlobj
from rlobj import load_preset
from rlobj.base.errors import ConfigError
from rlobj.insight.replaying.candidates import read_sweep


def test_each_value_of_a_sweep_is_the_rule_with_this_number() -> None:
    updates = [update_of(STAPO, batch(seed), step=seed) for seed in (1, 2)]
    rule = "(advantage > 0) & (prob < TAU) & entropy.bottom(0.8)"
    found = rlobj.replay(updates, rule, sweep="TAU=1e-3..1e-1:5")
    values = [row["value"] for row in found.sweeps.to_pylist()]
    assert values == [0.001, 0.003162, 0.01, 0.03162, 0.1]
    for row in found.sweeps.to_pylist():
        text = rule.replace("TAU", str(row["value"]))
        alone = rows(rlobj.replay(updates, text).objectives)[text]
        for name in ("touched", "share", "precision", "recall", "carried"):
            assert row[name] == alone[name]
    assert set(rows(found.objectives)) == {"recorded"}
    swept = rlobj.replay(updates, "entropy.bottom(Q)", sweep={"Q": [0.25, 0.5]}).sweeps
    assert [round(row["share"], 1) for row in swept.to_pylist()] == [0.3, 0.5]


def test_sweeps_are_spaced_by_factors_or_by_distance() -> None:
    assert read_sweep("T=1..9:5") == ("T", [1, 3, 5, 7, 9])
    assert read_sweep("T=-1..1:3") == ("T", [-1, 0, 1])
    assert read_sweep("T = 0.01 .. 1 : 3") == ("T", [0.01, 0.1, 1])
    assert len(read_sweep("TAU_p=1e-4..1e-2")[1]) == 20


@pytest.mark.parametrize(
    ("rule", "sweep", "message"),
    [
        ("prob < TAU", None, "'TAU' has no value.*sweep=TAU=1e-4..1e-2"),
        ("prob < 0.1", "TAU=0.1..0.2", "no rule reads 'TAU'"),
        ("(prob < TAU) & (entropy > RHO)", "TAU=0.1..0.2", "'RHO' has no value"),
        ("prob < TAU", "TAU=0.2..0.1", "cannot read the sweep"),
        ("prob < TAU", "TAU=0.1", "Expected NAME=FROM..TO"),
        ("prob < TAU", "TAU=0.1..0.2:9999999", "with 2 to 1000 values"),
        ("prob < TAU", {"A": [1.0], "B": [1.0]}, "sweep needs one name"),
        ("stapp", None, r"unknown preset 'stapp'. Did you mean 'stapo'"),
        ("prob", None, "expected a rule such as"),
        ("prob<0.01 & advantage>0", None, "put each comparison in parentheses"),
    ],
)
def test_wrong_rules_and_sweeps_are_refused_in_words(rule: str, sweep: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rlobj.replay([update_of(STAPO, batch())], rule, sweep=sweep)


def test_no_candidate_has_the_name_of_the_recorded_objective() -> None:
    with pytest.raises(ConfigError, match="'recorded' is the run's own objective"):
        rlobj.replay([update_of(STAPO, batch())], {"recorded": "prob < 0.1"})


def test_a_rule_may_read_a_controller_of_the_recorded_objective() -> None:
    stare = load_preset("stare").objective
    recorded = update_of(stare, batch(), W={"value": 1.25})
    found = rows(rlobj.replay([recorded], ["entropy > W", "entropy > 1.25"]).objectives)
    assert found["entropy > W"]["touched"] == found["entropy > 1.25"]["touched"] > 0
