"""Words that other programs use for settings, and what an error says of them."""

from __future__ import annotations

import re

import pytest
from setting_names import setting_meanings

from rlobj.base.errors import ConfigError
from rlobj.settings.building import build_config, compose, meaning_of, synonyms
from rlobj.settings.layers import nested

SETTINGS = {*setting_meanings()}


def test_every_word_means_settings_that_exist() -> None:
    for word, text in synonyms().items():
        settings, _, remark = text.partition(";")
        named = [*settings.split(), *re.findall(r"\b[a-z]+\.[a-z_]+_[a-z_]+\b", remark)]
        assert {*named} <= SETTINGS, word
        assert word not in SETTINGS
        assert settings or remark, word


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("training.lr", "Did you mean 'training.learning_rate'?"),
        ("steps", "Did you mean 'training.steps'?"),
        ("max_grad_norm", "Did you mean 'training.max_grad_norm'?"),
        ("actor_rollout_ref.rollout.n", "Did you mean 'sampling.group_size'?"),
        ("rollout.temperature", "Did you mean 'sampling.temperature' or 'evaluation.temperature'?"),
        ("sampling.temperatur", "Did you mean 'sampling.temperature'?"),
        ("epsilon", "Did you mean 'objective.surrogate.low' or 'objective.surrogate.high'?"),
        (
            "gradient_accumulation_steps",
            "Did you mean 'training.micro_batch_tokens'? It changes mem",
        ),
        ("logging_steps", "Every step is logged in metrics.jsonl of the run."),
        ("objective.keepp", "Did you mean 'objective.keep'? Known: advantage, columns, contr"),
        ("training.group_size", "Did you mean 'sampling.group_size'? Known: adam_epsilon, bet"),
        ("evaluation.n", "Did you mean 'evaluation.samples'? Known: every, min_p, problems"),
        ("evaluation.batch_size", "Known: every, min_p, problems, samples, temperature"),
        ("checkpoint.steps", "Did you mean 'checkpoint.every'? Known: best, every, keep"),
        ("environment.beta", "Known: at_limit"),
        ("objective.surrogate.temperature", "Known: against, dual"),
        (
            "objective.surrogate.delta",
            "Did you mean 'objective.surrogate.dual'? Known: against, dual",
        ),
        (
            "objective.surrogate.clip_ratio",
            "Did you mean 'objective.surrogate.low' or 'objective.surrogate.high'? Known: against",
        ),
    ],
)
def test_an_unknown_setting_is_answered_by_its_meaning(name: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config([("here", nested(name, 1))])
    assert f"(from here): unknown key. {advice}" in str(caught.value)


@pytest.mark.parametrize("key", ["delta", "clip_ratio", "loss_type"])
def test_no_setting_is_named_that_the_surrogate_lacks(key: str) -> None:
    with pytest.raises(ConfigError, match=r"Known: max_log_ratio, tau_neg, tau_pos\.") as caught:
        compose("sapo", [("here", nested(f"objective.surrogate.{key}", 1))])
    named = re.findall(r"'objective\.surrogate\.(\w+)'", str(caught.value))
    assert {*named} <= {"kind", "max_log_ratio", "tau_neg", "tau_pos"}


def test_a_reward_of_your_own_has_its_own_words() -> None:
    rewards = {"kind": "custom", "target": "file.py:score", "beta": 3}
    with pytest.raises(
        ConfigError, match=r"rewards\.beta \(from here\): unknown key\. Known: batc"
    ):
        build_config([("here", {"rewards": rewards})])


def test_the_keys_of_another_program_are_answered_one_by_one() -> None:
    keys = {"actor": {"optim": {"lr": 1e-6}}, "rollout": {"n": 8}, "nope": 1}
    with pytest.raises(ConfigError) as caught:
        build_config([("here", {"actor_rollout_ref": keys})])
    assert str(caught.value).endswith(
        "actor_rollout_ref (from here): unknown key. actor.optim.lr: Did you mean "
        "'training.learning_rate'? rollout.n: Did you mean 'sampling.group_size'?"
    )


def test_a_name_without_a_meaning_has_none() -> None:
    assert meaning_of("nope") == ""
    with pytest.raises(
        ConfigError, match=r"nope.*: unknown key\. Known: checkpoint, columns, data"
    ):
        build_config([("here", {"nope": 1})])
