"""Scores: policies whose log-probs of the same tokens an objective reads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlobj import BatchError, ConfigError, Objective, TokenBatch, load_preset
from rlobj.settings.presets import preset_names

LENGTHS = [3, 0, 2, 4]


def table(**columns: Any) -> TokenBatch:
    """Nine tokens of four responses, two groups; the second response of the second is undecided."""
    numbers = torch.Generator().manual_seed(3)
    made = {
        name: -2 * torch.rand(sum(LENGTHS), dtype=torch.float64, generator=numbers)
        for name in ("logprobs", "old", "ref", "teacher")
    }
    return TokenBatch(
        lengths=LENGTHS,
        groups=[0, 0, 1, 1],
        ids=[0, 1, 2, 3],
        rewards=torch.tensor([1.0, 0.0, 1.0, math.nan], dtype=torch.float64),
        logprobs=made["logprobs"].requires_grad_(),
        old_logprobs=made["old"],
        ref_logprobs=made["ref"],
        columns={"teacher_logprob": made["teacher"], **columns},
    )


def columns_of(batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
    return batch.logprobs.detach(), batch.columns["teacher_logprob"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("teacher_gap", lambda own, t: t - own),
        ("teacher_logprob", lambda own, t: t),
        ("teacher_prob", lambda own, t: t.exp()),
        (
            "clip(teacher_gap, -0.5, 0.5) + teacher_prob",
            lambda own, t: (t - own).clip(-0.5, 0.5) + t.exp(),
        ),
    ],
)
def test_the_columns_of_a_score_follow_from_its_log_probs(text, expected):
    batch = table()
    objective = Objective(surrogate="reinforce", shape=text, scores=["teacher"])
    [found] = objective.plan([batch]).advantages
    torch.testing.assert_close(found, expected(*columns_of(batch)), rtol=0, atol=1e-15)
    assert objective.needs.plan <= {"teacher_logprob", "logprobs"}


def test_rewards_that_no_part_reads_may_be_absent_or_undecided():
    objective = Objective(surrogate="reinforce", shape="teacher_gap", scores=["teacher"])
    assert not objective.reads_rewards
    undecided, without = table(), table().replace(rewards=None)
    assert objective(undecided).loss == objective(without).loss
    mixed = objective.replace(shape="teacher_gap + advantage")
    assert mixed.reads_rewards
    assert mixed(undecided).loss != mixed.replace(shape="teacher_gap")(undecided).loss
    with pytest.raises(BatchError, match="rewards"):
        mixed(without)


GATE = {"kind": "gate", "of": "reward.mean()", "target": 1, "on": 2}


@pytest.mark.parametrize(
    "part",
    [
        {"drop": "reward < 0.5"},
        {"reweight": "when(advantage > 0, 2, 1)"},
        {"keep": "covariance > 0"},
        {"reward_kl": 0.1},
        {"controllers": {"W": GATE}, "reweight": "W"},
    ],
)
def test_any_part_that_reads_rewards_needs_them(part):
    objective = Objective(shape="teacher_gap", scores=["teacher"], **part)
    assert objective.reads_rewards
    assert "rewards" in objective.needs.plan


def test_a_kl_against_a_score_reads_its_log_probs():
    batch = table()
    kl = {"kind": "kl", "against": "teacher", "estimator": "k2", "coefficient": 0.3}
    found = Objective(scores=["teacher"], penalties=[kl], advantage="group_centered")(batch)
    own, teacher = (each[:5] for each in columns_of(batch))  # of the decided responses
    expected = 0.3 * (0.5 * (own - teacher) ** 2).mean()
    assert found.metrics["loss/kl_teacher"].item() == pytest.approx(expected.item())


def test_a_kl_in_the_reward_may_be_against_a_score():
    batch = table().replace(rewards=torch.ones(4))
    against = {"coefficient": 0.5, "against": "teacher"}
    objective = Objective(advantage="group_centered", reward_kl=against, scores=["teacher"])
    [found] = objective.plan([batch]).advantages
    gaps = batch.sum_by_response(batch.old_logprobs - batch.columns["teacher_logprob"])
    rewards = (1 - 0.5 * gaps).reshape(2, 2)
    torch.testing.assert_close(found, batch.spread((rewards - rewards.mean(1)[:, None]).flatten()))
    assert Objective(reward_kl=0.5).model_dump(by_alias=True)["reward_kl"] == 0.5


def test_the_reference_is_a_score_that_is_always_there():
    texts = ("ref_gap", "reference_gap", "reference_logprob - logprob")
    losses = [Objective(surrogate="reinforce", shape=text)(table()).loss for text in texts]
    assert len({loss.item() for loss in losses}) == 1


@pytest.mark.parametrize(
    ("scores", "settings", "message"),
    [
        (["old"], {}, "expected new names .* got 'old'"),
        (["teacher", "teacher"], {}, "expected new names .* got 'teacher'"),
        (["teacher"], {"columns": ["teacher_gap"]}, "expected new names .* got 'teacher'"),
        ([], {"shape": "teacher_gap"}, "unknown name 'teacher_gap'"),
        (["teacher"], {"shape": "teacher_gab"}, "Did you mean 'teacher_gap'"),
        ([], {"reward_kl": {"coefficient": 0.1, "against": "tutor"}}, "no score 'tutor'"),
        (["tutor"], {"penalties": [{"kind": "kl", "against": "tutor"}]}, "estimator: k2"),
    ],
)
def test_mistakes_in_scores_are_named(scores, settings, message):
    with pytest.raises(ConfigError, match=message):
        Objective(scores=scores, **settings)


@pytest.mark.parametrize("shape", ["teacher_gap", "advantage * (1 + 0.5 * teacher_prob)"])
def test_a_shape_that_reads_a_score_keeps_groups_of_equal_rewards(shape):
    assert Objective(surrogate="reinforce", scores=["teacher"], shape=shape).scores_alone
    assert not Objective(scores=["teacher"], shape="advantage * prob").scores_alone


def test_only_a_score_a_value_or_turns_give_a_group_of_equal_rewards_its_signal():
    """Presets that shape advantages in other ways keep dynamic sampling as it is."""
    found = {name for name in preset_names() if load_preset(name).objective.scores_alone}
    distilled = {"opd", "opdvr", "exopd", "iw-opd", "tropd", "opsd", "sdar", "rlsd", "gkd"}
    with_values = {"ppo", "vapo", "bpco", "sao"}
    assert found == {*distilled, *with_values, "gigpo"}
