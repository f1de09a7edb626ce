"""Each setting of GRPOConfig is used, replaced or refused by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from integrations.trl_runs import GRPOTrainer, config, trainer

from rlobj import KL, ConfigError, Objective, column, load_preset, reward
from rlobj.integrations.trl import ObjectiveMixin, ObjectiveTrainer
from rlobj.integrations.trl.settings import fitted, report, scaled_as

VLLM = {"use_vllm": True}
STAGED = Objective(columns=["stage"], drop=column("stage") > 1)
SCORED = Objective(scores=["teacher"], shape="advantage + teacher_gap")
SURE = SCORED.replace(reweight="teacher_entropy")
LOPTI = {"objective": "lopti"}


@pytest.mark.parametrize(
    ("setting", "named", "message"),
    [
        # Terms of TRL's loss.
        ({"use_liger_kernel": True}, {}, r"GRPOConfig\(use_liger_kernel=True\) is of TRL's loss"),
        ({"delta": 2.0, "entropy_coef": 0.1}, {}, r"delta=2.0, entropy_coef=0.1\).*docs/trainers"),
        # Objectives.
        ({}, {"objective": "stapoo"}, "stapo"),
        ({}, {"objective": None}, "objective=None; expected the name or file of a preset"),
        ({}, {"objective": "lp-reg"}, "'proxy_logprobs', .* reads. `rlobj"),
        ({}, {"objective": "otb"}, "'old_collision', which shape"),
        ({}, {"objective": "archer"}, r"KL reads. Set GRPOConfig\(beta=...\)"),
        ({}, {"objective": "tis", "rollout_func": None}, r"Set GRPOConfig\(use_vllm=True\)"),
        ({}, {"objective": Objective(drop=reward("format") > 0)}, "'format'.*Known: reward"),
        # Phases.
        ({"beta": 0.01}, LOPTI, r"num_iterations=2, or a multiple; got 1"),
        ({"beta": 0.01, "num_iterations": 2, "steps_per_generation": 2}, LOPTI, "cover two phases"),
        # Columns and scores.
        ({}, {"objective": STAGED}, "column 'stage', which drop.*columns={'stage': 'data'}"),
        (
            {},
            {"columns": {"hard": "mine.py:zone"}},
            "columns.hard=mine.py:zone: in TRL, expected data",
        ),
        ({}, {"columns": {"step": "data"}}, "columns.step: the record has this column"),
        ({}, {"objective": SCORED}, "scores={'teacher': {'model': NAME}}"),
        ({}, {"objective": "opd"}, "nothing names its model"),
        ({}, {"scores": {"teacher": {"modle": "x"}}}, "Did you mean 'model'"),
        (
            {},
            {"objective": SCORED, "scores": {"teacher": {"model": "policy", "ema": 0.9}}},
            "in TRL a score is a frozen model",
        ),
        (
            {},
            {"objective": SCORED, "scores": {"teacher": {"by": "kind", "models": {"math": "x"}}}},
            "in TRL a score is a frozen model",
        ),
        ({}, {"objective": SURE, "scores": {"teacher": {"model": "x"}}}, "'teacher_entropy'"),
        # Options.
        ({}, {"advantages": "none"}, "advantages='none'; expected 'auto', 'trl' or"),
        ({}, {"selection": "new"}, "training.selection.*'current' or 'old'"),
        ({}, {"output": {"table_every": 1}}, "table_every"),
    ],
)
def test_what_cannot_be_right_is_refused_when_the_trainer_is_made(
    tmp_path: Path, setting: dict[str, Any], named: dict[str, Any], message: str
) -> None:
    args = config(tmp_path, **setting)
    with pytest.raises(ConfigError, match=message):
        trainer(ObjectiveTrainer, args, **{"objective": "stapo", **named})


def test_two_corrections_are_refused(tmp_path: Path) -> None:
    given = vars(config(tmp_path)) | VLLM
    with pytest.raises(ConfigError, match="vllm_importance_sampling_correction=False"):
        fitted("tis", given, True)
    assert fitted("tis", given | {"vllm_importance_sampling_correction": False}, True).mismatch


def test_what_a_correction_cannot_do_is_refused(tmp_path: Path) -> None:
    bounds = {"mode": "token_truncate", "clip_min": 0.5, "clip_max": 2.0}
    given = {f"vllm_importance_sampling_{name}": value for name, value in bounds.items()}
    with pytest.raises(ConfigError, match=r"clip_min=0.5.*ends in _mask"):
        fitted("dapo-loss", vars(config(tmp_path, **given)) | VLLM, True)


def test_beta_is_a_kl_unless_the_objective_reads_a_reference(tmp_path: Path) -> None:
    given = vars(config(tmp_path, beta=0.04, use_bias_correction_kl=True))
    [kl] = fitted("dapo-loss", given, False).penalties
    assert kl == KL(coefficient=0.04, max_gap=None, unbiased=True)
    assert fitted("archer", given, False).penalties == load_preset("archer").objective.penalties


@pytest.mark.parametrize(
    ("advantage", "settings", "same"),
    [
        ("group_normalized", {}, True),
        ("group_normalized", {"scale_rewards": "batch"}, False),
        ({"kind": "group_normalized", "scale": "batch"}, {"scale_rewards": "batch"}, True),
        ({"kind": "group_normalized", "scale": "none"}, {"scale_rewards": "none"}, True),
        ("group_centered", {"scale_rewards": "none"}, True),
        ("group_centered", {}, False),
        ("leave_one_out", {}, False),
        (
            {"kind": "decoupled", "then": {"kind": "group_normalized", "scale": "batch"}},
            {"multi_objective_aggregation": "normalize_then_sum"},
            True,
        ),
        ("decoupled", {"multi_objective_aggregation": "normalize_then_sum"}, False),
        ("group_normalized", {"multi_objective_aggregation": "normalize_then_sum"}, False),
    ],
)
def test_trls_advantages_are_used_if_they_have_the_formula(
    tmp_path: Path, advantage: Any, settings: dict[str, Any], same: bool
) -> None:
    args = vars(config(tmp_path, **settings))
    assert scaled_as(Objective(advantage=advantage), args) is same


def test_a_kl_in_the_reward_needs_the_objectives_advantages(tmp_path: Path) -> None:
    assert not scaled_as(Objective(reward_kl=0.1), vars(config(tmp_path)))


def test_a_preset_that_is_loaded_is_the_preset_of_that_name(tmp_path: Path) -> None:
    preset, given = load_preset("dr-grpo"), config(tmp_path)
    ours = trainer(ObjectiveTrainer, given, objective=preset)
    assert ours.objective == fitted("dr-grpo", vars(given), False)
    assert ours.objective.divisor.length == given.max_completion_length
    assert ours._recorder._preset == str(preset.path)


def test_settings_without_effect_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args = vars(config(tmp_path, epsilon=0.3, loss_type="grpo", scale_rewards="batch"))
    with caplog.at_level(logging.WARNING):
        report(Objective(), args, True, GRPOTrainer._compute_loss)
        fitted("dapo", args, False)
    assert "loss_type='grpo', epsilon=0.3, scale_rewards='batch'" in caplog.text
    assert "preset dapo: TRL does not read its sampling.dynamic and rewards" in caplog.text


def test_the_mixin_goes_first() -> None:
    with pytest.raises(ConfigError, match="class Late: name ObjectiveMixin before the trainer"):

        class Late(GRPOTrainer, ObjectiveMixin):
            """The wrong order."""


def test_a_loss_behind_the_mixin_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Mine(GRPOTrainer):
        """Adds a term to the loss."""

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            return super()._compute_loss(model, inputs) + 1

    class Behind(ObjectiveMixin, Mine):
        """Its loss is the objective's."""

    trainer(ObjectiveTrainer, config(tmp_path), objective="stapo")
    assert "is not called" not in caplog.text
    trainer(Behind, config(tmp_path), objective="stapo")
    assert "Mine._compute_loss is not called: the objective makes the loss" in caplog.text
