"""Objective: copies with changes, dumps, columns that it needs, errors, explanations."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from strategies import NAN, awkward_batch, fitting, objectives, tokens
from torch import Tensor

from rlobj import BatchError, ConfigError, Objective, entropy, load_preset, prob
from rlobj.objectives.controllers import Gate
from rlobj.objectives.divisors import SequenceMean, TokenMean
from rlobj.objectives.penalties import KL
from rlobj.objectives.surrogates import Surrogate, Terms, Unclipped

OBJECTIVES = objectives()
DAPO = load_preset("dapo").objective


def test_replace_returns_a_changed_copy_and_keeps_the_original() -> None:
    child = DAPO.replace(divisor=SequenceMean(), drop="prob < 0.1")
    assert (child.divisor, child.drop_rule) == (SequenceMean(), prob < 0.1)
    assert DAPO.drop_rule is None
    assert child.replace(divisor=TokenMean(), drop=None) == DAPO
    assert child.but(drop=None) == child.replace(drop=None)
    with pytest.raises(ConfigError, match="Did you mean 'divisor'"):
        DAPO.replace(divisors=TokenMean())


def test_a_rule_that_is_split_off_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"split: 'prob < 0\.1' is given twice"):
        Objective(split=["prob < 0.1", "entropy > 1", "0.1 > prob"])
    with pytest.raises(ConfigError, match="is given twice"):
        DAPO.split("prob < 0.1").split(prob < 0.1)


W: dict[str, Any] = {"controllers": {"W": Gate(target=0.3, on=1.1)}}


@pytest.mark.parametrize(
    "reader",
    [
        {"reweight": "W"},
        {"shape": "advantage * W"},
        {"keep": "prob < W"},
        {"split": ["prob < 0.1", "prob < W"]},
        {"surrogate": {"kind": "clip", "high": "W"}},
        {"surrogate": {"kind": "switch", "rule": "prob < W", "then": "clip", "otherwise": "cispo"}},
        {"mismatch": {"kind": "truncate", "cap": "1 + W"}},
        {"penalties": [{"kind": "kl", "where": "prob < W"}]},
        {"penalties": [{"kind": "kl", "coefficient": "0.1 * W"}]},
        {"penalties": [{"kind": "kl", "max_gap": "W"}]},
    ],
    ids=str,
)
def test_a_controller_can_be_read_anywhere(reader: dict[str, Any]) -> None:
    objective = Objective(**W, **reader)
    assert len(objective.phases) == 1 + len(objective.split_rules)
    assert Objective(**objective.model_dump(by_alias=True)) == objective


def test_null_removes_a_controller() -> None:
    more = {"W": W["controllers"]["W"], "M": Gate(target=0.3, on=0.9)}
    assert list(Objective(controllers={**more, "W": None}, reweight="M").controllers) == ["M"]
    assert Objective(controllers=None).controllers == {}  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="controllers"):
        Objective(controllers=["W"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_objectives_are_plain_data(name: str) -> None:
    objective = OBJECTIVES[name]
    assert pickle.loads(pickle.dumps(objective)) == objective
    assert copy.deepcopy(objective) == objective
    for form in ({"exclude_defaults": True}, {}, {"exclude_defaults": True, "mode": "json"}):
        assert Objective(**objective.model_dump(by_alias=True, **form)) == objective
    assert Objective.model_json_schema()["properties"].keys() == set(Objective.keys())


def test_one_error_lists_all_mistakes_and_nothing_can_be_assigned() -> None:
    with pytest.raises(ConfigError) as caught:
        Objective(drop_rule="prob < 1", surrogate={"kind": "clip", "hi": 1}, divisor="token_men")  # type: ignore
    lines = str(caught.value)
    for part in (
        "mean 'drop'",
        "surrogate.hi: unknown key",
        "divisor: kind 'token_men' is unknown",
    ):
        assert part in lines
    with pytest.raises(Exception, match="frozen"):
        DAPO.divisor = TokenMean()  # type: ignore[misc]


class Doubled(Surrogate):
    """S = 2·r·A, a custom surrogate."""

    factor: float = 2.0

    def __call__(self, terms: Terms) -> Tensor:
        return self.factor * terms.token_ratio * terms.advantages


def test_a_custom_primitive_is_named_by_its_target() -> None:
    setting = {"kind": "custom", "target": f"{__name__}:Doubled", "factor": 3.0}
    objective = Objective(surrogate=setting)  # type: ignore[arg-type]
    assert objective.surrogate == Doubled(factor=3.0)
    dumped = objective.model_dump(by_alias=True, exclude_defaults=True)
    assert dumped["surrogate"] == setting
    assert Objective(**dumped) == objective
    batch = awkward_batch(2)
    plain = Objective(surrogate=Unclipped())
    torch.testing.assert_close(objective(batch).loss, 3 * plain(batch).loss)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (None, "target is None. Expected"),
        ("nothing.at.all:X", "importing 'nothing.at.all' failed"),
        (f"{__name__}:Doubledd", "Did you mean 'Doubled'"),
        (f"{__name__}:Objective", "must be a subclass of rlobj's Surrogate"),
    ],
)
def test_errors_of_custom_targets_name_the_target_and_the_reason(target, message):
    with pytest.raises(ConfigError, match=message):
        Objective(surrogate={"kind": "custom", "target": target})  # type: ignore[arg-type]


# What each stage reads.


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_needs_lists_exactly_the_columns_that_are_read(name: str) -> None:
    """The columns of `needs` are sufficient, and an error names each one that is missing."""
    objective = OBJECTIVES[name]
    needs = objective.needs
    whole = fitting(objective, awkward_batch(2))
    optional = {"old_logprobs", "entropy", "old_entropy", "ref_logprobs", "sampler_logprobs"}
    optional |= {"proxy_logprobs", "collision", "old_collision"}
    unread = optional - needs.observe - needs.plan - needs.loss
    least = whole.replace(**dict.fromkeys(unread))
    assert torch.equal(objective(least).loss, objective(whole).loss)
    defaulted = {"logprobs", "old_logprobs", "rewards", "turn"}  # absent: on-policy, one turn
    for column in (needs.observe | needs.plan | needs.loss) - defaulted:
        others = {name: values for name, values in least.columns.items() if name != column}
        absent: Any = {column: None} if hasattr(least, column) else {"columns": others}
        with pytest.raises(BatchError, match=f"needs the column '{column}'"):
            objective(least.replace(**absent))


@pytest.mark.parametrize(
    ("settings", "column"),
    [
        ({"keep": entropy.top(0.2)}, "entropy"),
        ({}, "old_logprobs"),
        ({"penalties": [KL()]}, "ref_logprobs"),
        ({"reward_kl": 0.1}, "ref_logprobs"),
        ({"drop": prob < 0.5}, "logprobs"),
    ],
)
@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_error_of_a_value_that_is_not_finite_names_column_and_row(settings, column, value) -> None:
    columns = dict.fromkeys(("old_logprobs", "ref_logprobs", "entropy"), [-1.0] * 3)
    batch = tokens([1, 2], [-1.0, -2.0, -3.0], rewards=[1.0, 0.0], **columns)
    broken = getattr(batch, column).clone()
    broken[2] = value
    batch, objective = batch.replace(**{column: broken}), DAPO.replace(**settings)
    expected = rf"column '{column}' is (nan|inf) at row 2 \(response 1, token 1\)"
    with pytest.raises(BatchError, match=expected):
        objective.plan([batch])
    assert objective(batch.replace(rewards=[1.0, NAN])).loss.isfinite()


# Words.


def test_explain_describes_each_rule_and_settings_without_effect() -> None:
    words = str(load_preset("stare").objective.explain(updates_per_step=1))
    assert "loss = − (1/Z) Σ ω · S(r, A)" in words
    assert "the k largest surprisal of the update's n tokens with advantage > 0" in words
    assert "ties kept" in words
    assert "the bounds of {kind: clip, high: 0.28, dual: 10.0}" in words
    assert load_preset("stare").objective.explain(updates_per_step=4).inert == ()
    kl_cov = load_preset("kl-cov").objective.explain(updates_per_step=1)
    assert any("on-policy l = l0" in text for text in kl_cov.inert)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_explain_names_every_expression_and_column(name: str) -> None:
    objective = OBJECTIVES[name]
    words = str(objective.explain())
    for rule in (objective.drop_rule, objective.keep_rule, *objective.split_rules):
        assert rule is None or str(rule) in words
    for column in objective.needs.plan | objective.needs.loss:
        assert column in words
