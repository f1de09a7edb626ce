"""What is refused, and what is warned about, when a run is about to start."""

from __future__ import annotations

import pytest

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.settings.building import compose
from rlobj.settings.presets import preset_names
from rlobj.settings.run_config import RunConfig
from rlobj.settings.starting import doubts, refuse_senseless


def grpo(**sections: dict[str, object]) -> RunConfig:
    return compose("grpo", [("here", sections)])


def test_one_response_per_prompt_needs_an_advantage_over_the_batch() -> None:
    with pytest.raises(ConfigError, match=r"group_size: 1 response .* group_normalized compares"):
        rlobj.train("grpo", settings={"sampling.group_size": 1})
    one = {"sampling": {"group_size": 1}}
    refuse_senseless(grpo(**one, objective={"advantage": "batch_whitened"}))
    refuse_senseless(grpo())


def test_a_penalty_that_makes_rewards_negative_is_refused_where_they_must_not_be() -> None:
    overlong = {"rewards": {"overlong": {"cache": 0.2}}}
    with pytest.raises(ConfigError, match="maximum_likelihood takes rewards of 0 or more"):
        refuse_senseless(compose("maxrl", [("here", overlong)]))
    with pytest.raises(ConfigError, match=r"Leave it out, or use objective\.advantage=group_cent"):
        refuse_senseless(compose("maxrl", [("here", {"objective": {"reward_kl": 0.01}})]))
    several = {"advantage": {"kind": "decoupled", "each": "maximum_likelihood", "then": None}}
    with pytest.raises(ConfigError, match="maximum_likelihood takes rewards of 0 or more"):
        refuse_senseless(compose("dapo", [("here", {"objective": several})]))
    with pytest.raises(ConfigError, match="maximum_likelihood takes rewards of 0 or more"):
        rlobj.train("dapo", settings={"objective.advantage": "maximum_likelihood"})
    none = {"rewards": {"overlong": {"cache": 0.2, "penalty": 0}}}
    refuse_senseless(compose("maxrl", [("here", none)]))
    refuse_senseless(compose("dapo"))


def test_doubts_are_about_stale_samples() -> None:
    assert [doubt for name in preset_names() for doubt in doubts(compose(name))] == []
    [stale] = doubts(grpo(sampling={"async_depth": 1}))
    assert stale.startswith("sampling.async_depth=1 without objective.mismatch")
    of_sampler = {"training": {"old_logprobs": "sampler"}}
    assert not [*doubts(grpo(sampling={"async_depth": 1}, **of_sampler))]
    [needless] = doubts(compose("tis", [("here", of_sampler)]))
    assert needless.startswith("objective.mismatch (truncate) has no effect")
    assert needless.endswith("Use objective.mismatch=null or training.old_logprobs=policy")


def test_a_continuous_schedule_wants_a_correction_and_no_other_schedule():
    [stale] = doubts(grpo(sampling={"schedule": "continuous"}))
    assert stale.startswith("sampling.schedule=continuous without objective.mismatch")
    for setting, value in (
        ("async_depth", 1),
        ("in_flight", 1),
        ("dynamic", {"whole_batches": True}),
    ):
        with pytest.raises(ConfigError, match=f"sampling.{setting}"):
            grpo(sampling={"schedule": "continuous", setting: value})
