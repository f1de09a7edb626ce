"""An objective that reads a column which the trainer lacks is refused when the run starts."""

from __future__ import annotations

import pytest

from rlobj import ConfigError, Objective, column, load_preset, parse
from rlobj.config.presets import preset_names
from rlobj.integrations.columns import check_columns

USUAL = {"rewards", "old_logprobs", "entropy", "old_entropy"}


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ("lp-reg", "'proxy_logprobs', which surrogate 'logprob.bottom"),
        ("otb", "'old_collision', which shape 'reward - when"),
        ("reinforce-pp", "'ref_logprobs', which reward_kl 0.01 reads. It needs a reference"),
        ("tis", "'sampler_logprobs', which the mismatch correction Truncate"),
        ("opd", "'teacher_logprob', which shape 'teacher_gap' reads. It is of a score"),
    ],
)
def test_a_missing_column_is_refused_with_its_reader(preset: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_columns(load_preset(preset).objective, USUAL, "T")
    assert "T does not provide the column" in str(caught.value)
    assert message in str(caught.value)


def test_a_column_of_ones_own_is_refused_and_named() -> None:
    mine = Objective(columns=["stage"], drop=column("stage") > 2)
    with pytest.raises(ConfigError, match=r"'stage', which drop 'stage > 2' reads. It is a column"):
        check_columns(mine, USUAL, "T")


def test_a_column_of_turns_is_of_conversations() -> None:
    with pytest.raises(ConfigError, match=r"'turn', which the advantage .* It is of conversations"):
        check_columns(Objective(advantage="turn_return"), USUAL, "T")  # type: ignore[arg-type]


def test_the_trainers_own_advice_goes_first() -> None:
    objective = load_preset("tis").objective
    with pytest.raises(ConfigError, match=r"reads\. Set use_vllm"):
        check_columns(objective, USUAL, "T", {"sampler_logprobs": "Set use_vllm=True"})


def test_each_preset_has_a_reader_for_each_column_it_needs() -> None:
    for name in preset_names():
        objective = load_preset(name).objective
        columns = objective.needs.ever - {"logprobs"}
        assert [c for c in columns if objective.reader(c) is None] == []
        check_columns(objective, columns, "T")


def test_a_column_that_nothing_reads_has_no_reader() -> None:
    assert Objective(drop=parse("prob < 0.1")).reader("collision") is None
