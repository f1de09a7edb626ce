"""`rlobj presets check` tries an objective on degenerate tables."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from rlobj import Advantage, CustomRule, Divisor, Objective, Penalty, Surrogate, load_preset
from rlobj.base.errors import ConfigError
from rlobj.base.targets import without_imports
from rlobj.objectives.trials import TABLES, problems, require_trainable
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


class Sound(Surrogate):
    def __call__(self, terms):
        with torch.no_grad():
            bounded = terms.token_ratio.clamp(0, 1.2)
        return bounded * terms.advantages * (terms.logprobs - terms.logprobs.detach() + 1)


class Mean(Surrogate):
    def __call__(self, terms):
        return (terms.token_ratio * terms.advantages).mean()


class Centred(Surrogate):
    def __call__(self, terms):
        value = terms.token_ratio * terms.advantages
        return value - value.mean()


class CentredRatio(Surrogate):
    def __call__(self, terms):
        return (terms.log_ratio - terms.log_ratio.detach().mean()).exp() * terms.advantages


class Inherits(Mean):
    pass


class Leaves(Surrogate):
    def __call__(self, terms):
        raise SystemExit(0)


class OneSidedPenalty(Penalty):
    """Has a kink where the policy is the reference; its coefficient is a Python number."""

    def __call__(self, terms):
        bound = float(terms.log_ratio.sum() * 0) + 1
        return bound * (terms.column("ref_logprobs") - terms.logprobs).clamp(min=0)

    def needs(self):
        return ("ref_logprobs", "old_logprobs")


@dataclass(frozen=True)
class FirstUpdates(CustomRule):
    def select(self, frame):
        return frame.decided & (frame.state["update"] < 5)


class HalfOfTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ratio):
        ctx.save_for_backward(ratio)
        return ratio * ratio

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] * ctx.saved_tensors[0]


class WrongGradient(Surrogate):
    def __call__(self, terms):
        return HalfOfTheGradient.apply(terms.token_ratio) * terms.advantages


class Misspelled(Surrogate):
    def __call__(self, terms):
        return terms.tokenratio


class CentredPenalty(Penalty):
    def __call__(self, terms):
        return (terms.logprobs - terms.logprobs.mean()) ** 2


class OneAdvantage(Advantage):
    def estimate(self, groups):
        return groups.rewards[:1]


class OneDivisor(Divisor):
    def __call__(self, counted, table, comm):
        return counted.sum()


def test_a_sound_class_of_ones_own_has_no_problem() -> None:
    """Also one that stops gradients, which finite differences do not see by themselves."""
    settings = {"surrogate": Sound(), "penalties": ["kl", OneSidedPenalty()]}
    assert list(problems(Objective(**settings, keep=FirstUpdates()))) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"surrogate": Mean()}, "Mean() returned a tensor []; expected a tensor [21]"),
        ({"surrogate": Centred()}, "if each response is in a micro-batch of its own"),
        ({"surrogate": CentredRatio()}, "if each response is in a micro-batch of its own"),
        ({"surrogate": Inherits()}, "Inherits() returned a tensor []; expected a tensor [21]"),
        ({"surrogate": Leaves()}, "code of the objective failed: SystemExit: 0"),
        ({"surrogate": WrongGradient()}, "by finite differences of the loss"),
        ({"surrogate": Misspelled()}, "AttributeError: 'Terms' object has no attribute"),
        ({"penalties": [CentredPenalty()]}, "if each response is in a micro-batch of its own"),
        ({"advantage": OneAdvantage()}, "OneAdvantage() returned a tensor [1]; expected a"),
        ({"divisor": OneDivisor()}, "OneDivisor() returned a tensor []; expected a tensor [21]"),
    ],
    ids=str,
)
def test_a_mistake_in_a_class_of_ones_own_is_one_problem_with_file_and_line(settings, message):
    [problem] = problems(Objective(**settings))
    assert message in problem
    assert f"at {__file__}, line " in problem
    with pytest.raises(ConfigError, match=r"my\.yaml: training fails at a table with"):
        require_trainable(Objective(**settings), "my.yaml")


def test_a_class_that_is_not_imported_is_not_tried() -> None:
    with without_imports():
        objective = Objective(surrogate={"kind": "custom", "target": "mine.py:Mine"})
    assert list(problems(objective)) == []
