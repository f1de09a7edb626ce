"""`rlobj presets check` tries an objective on degenerate tables."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rlobj import CustomRule, Objective, load_preset
from rlobj.objectives.trials import TABLES, problems
from rlobj.settings.presets import preset_names

SPREAD = "(length - length.min(by='group')) / (length.max(by='group') - length.min(by='group'))"


QUICK = ["fipo", "gdpo", "otb", "real", "stapo", "stare-c2"]


SLOW = pytest.mark.slow
NAMES = [pytest.param(name, marks=() if name in QUICK else SLOW) for name in preset_names()]


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_passes_every_table(name: str) -> None:
    assert list(problems(load_preset(name).objective)) == []


GATE = {"kind": "gate", "target": 1, "on": 2}


@pytest.mark.parametrize(
    ("settings", "tables"),
    [
        ({"keep": f"{SPREAD} < 0.5"}, ["equal lengths", "one token in each response"]),
        ({"reweight": "1 / (reward.max(by='group') - reward.min(by='group'))"}, ["equal rewards"]),
        ({"shape": "advantage / reward.mean(by='group')"}, ["rewards of 0"]),
        ({"reweight": "entropy.mean(within=advantage > 0)"}, ["equal rewards", "rewards of 0"]),
        ({"surrogate": {"kind": "clip", "high": "log(1 - prob)"}}, ["tokens with probability 1"]),
        ({"penalties": [{"kind": "kl", "coefficient": "1 / (length - 1)"}]}, ["equal rewards"]),
        ({"split": ["1 / (position - 3) > 0"]}, ["rewards and lengths that differ"]),
        ({"controllers": {"W": GATE}, "reweight": "1 / (W - 2)"}, ["equal rewards"]),
    ],
    ids=str,
)
def test_the_tables_on_which_an_objective_fails_are_named_with_the_row(settings, tables):
    found = dict(problem.split(": ", 1) for problem in problems(Objective(**settings)))
    assert {*tables} <= found.keys() <= TABLES.keys()
    assert all("at row " in text for text in found.values())


@pytest.mark.parametrize(
    "settings",
    [
        {"shape": "advantage * length.rank(by='group')"},
        {"reweight": "entropy / entropy.mean()"},
        {"keep": "reward('right') > reward('right').mean()", "advantage": "decoupled"},
        {"keep": "stage > 1", "columns": ["stage"]},
        {
            "columns": {"state": "turn", "role": "response"},
            "reweight": "turn_reward.mean(by='state') + reward.mean(by='role')",
        },
        {"mismatch": "truncate", "penalties": ["kl", "entropy_bonus", "proxy_kl"]},
    ],
    ids=str,
)
def test_a_sound_objective_has_no_problem(settings: dict) -> None:
    assert list(problems(Objective(**settings))) == []


def test_code_of_ones_own_is_not_run() -> None:
    @dataclass(frozen=True)
    class Explosive(CustomRule):
        def select(self, frame):  # pragma: no cover
            raise AssertionError("it was run")

    assert list(problems(Objective(drop=Explosive(), shape="advantage / (length - length)"))) == []
