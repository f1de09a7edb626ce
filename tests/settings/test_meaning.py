"""Words that other programs use for settings, and what an error says of them."""

from __future__ import annotations

import re

import pytest

from rlobj.base.errors import ConfigError
from rlobj.settings.building import build_config
from rlobj.settings.layers import nested
from rlobj.settings.meaning import meaning_of, synonyms
from rlobj.settings.schema import setting_meanings

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
    ],
)
def test_an_unknown_setting_is_answered_by_its_meaning(name: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config([("here", nested(name, 1))])
    assert f"(from here): unknown key. {advice}" in str(caught.value)


def test_a_name_without_a_meaning_has_none() -> None:
    assert meaning_of("nope") == ""
    with pytest.raises(
        ConfigError, match=r"nope.*: unknown key\. Known: checkpoint, columns, data"
    ):
        build_config([("here", {"nope": 1})])
