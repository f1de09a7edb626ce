"""An objective that reads a column which the trainer lacks is refused when the run starts."""

from __future__ import annotations

from typing import Any

import pytest

from rlobj import ConfigError, Objective, column, load_preset, parse
from rlobj.integrations.columns import check_columns
from rlobj.settings.presets import preset_names

ADVICE = {"sampler_logprobs": "Set use_vllm=True"}
"""The trainer's own, which goes first."""


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("lp-reg", "'proxy_logprobs', which surrogate 'logprob.bottom"),
        ("otb", "'old_collision', which shape 'reward - when"),
        ("reinforce-pp", "'ref_logprobs', which reward_kl 0.01 reads. `rlobj train` has it"),
        ("tis", " reads. Set use_vllm=True"),
        ("opd", "'teacher_logprob', which shape 'teacher_gap' reads. `rlobj"),
        (Objective(drop="staleness > 4"), "'staleness', which drop 'staleness > 4'"),  # type: ignore[arg-type]
        ("ppo", "'critic_new_value', which ClippedSquared reads. `rlobj train`"),
        ("sao", "'critic_value', which the advantage Gae("),
        (Objective(advantage="turn_return"), "'turn', which the advantage "),  # type: ignore[arg-type]
        (
            Objective(columns=["stage"], drop=column("stage") > 2),
            "'stage', which drop 'stage > 2' reads. It is a column",
        ),
    ],
)
def test_a_missing_column_is_refused_with_its_reader(objective: Any, message: str) -> None:
    usual = {"rewards", "old_logprobs", "entropy", "old_entropy"}
    objective = load_preset(objective).objective if isinstance(objective, str) else objective
    with pytest.raises(ConfigError) as caught:
        check_columns(objective, usual, "T", ADVICE)
    assert "T does not provide the column" in str(caught.value)
    assert message in str(caught.value)


def test_each_preset_has_a_reader_for_each_column_it_needs() -> None:
    for name in preset_names():
        objective = load_preset(name).objective
        columns = objective.needs.ever - {"logprobs"}
        assert [c for c in columns if objective.reader(c) is None] == []
        check_columns(objective, columns, "T")
    assert Objective(drop=parse("prob < 0.1")).reader("collision") is None
