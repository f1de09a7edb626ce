"""The preset of a run in verl, and verl's settings that do not go with it."""

from __future__ import annotations

# pyright: reportMissingImports=false
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from omegaconf import OmegaConf

from rlobj.base.errors import ConfigError
from rlobj.installation import check_version
from rlobj.integrations.columns import check_columns
from rlobj.integrations.verl.names import LOSS_MODE
from rlobj.objectives.objective import Objective
from rlobj.settings.presets import load_preset

KEY = "actor_rollout_ref.rlobj"
TESTED = "==0.9.1"
_ALWAYS = {
    "logprobs",
    "old_logprobs",
    "entropy",
    "old_entropy",
    "collision",
    "old_collision",
    "rewards",
}
"""The columns that verl always provides."""
_ADVICE = {
    "ref_logprobs": "Type actor_rollout_ref.actor.use_kl_loss=True: verl then computes it, and the "
    "objective's own KL takes the place of verl's.",
    "sampler_logprobs": "Type actor_rollout_ref.rollout.calculate_log_probs=True.",
}
"""What would provide a column that an objective reads."""


@dataclass(frozen=True)
class Settings:
    """The objective of a run in verl.

    Attributes:
        objective: resolved at the run's `rollout.response_length`.
        selection: the policy that rules read after the first update of a rollout: "current" needs
            a forward pass per update, "old" does not; `training.selection` of the preset.
    """

    objective: Objective
    selection: str


def read_settings(config: Any) -> Settings:
    """Read and check the preset that `config.rlobj` names.

    Args:
        config: `actor_rollout_ref` of verl's configuration.

    Raises:
        ConfigError: there is no such preset, the preset needs a column that verl does not provide,
            or settings of the actor do not go with it.
    """
    check_version("verl", version("verl"), TESTED)
    name = OmegaConf.select(config, "rlobj")
    if not isinstance(name, str):
        raise ConfigError(
            f"loss_mode={LOSS_MODE} needs the name of a preset, or the path of its YAML file. "
            f"Type +{KEY}=stapo; got {name!r}"
        )
    preset = load_preset(name)
    objective = preset.resolved(config.rollout.response_length)
    provided = set(_ALWAYS)
    if config.actor.use_kl_loss:
        provided.add("ref_logprobs")
    if config.rollout.calculate_log_probs:
        provided.add("sampler_logprobs")
    check_columns(objective, provided, "verl", _ADVICE)
    if mistakes := [*_mistakes_of_actor(config.actor, objective)]:
        raise ConfigError("\n".join(mistakes))
    selection = preset.config.get("training", {}).get("selection", "current")
    return Settings(objective, selection)


def check(config: Any) -> None:
    """Check the whole configuration of a run that names rlobj, on the driver, before it starts.

    Raises:
        ConfigError: see `read_settings`; or verl would do something that the objective does, too.
    """
    if config.actor_rollout_ref.actor.policy_loss.loss_mode != LOSS_MODE:
        needed = f"actor_rollout_ref.actor.policy_loss.loss_mode={LOSS_MODE}"
        raise ConfigError(f"{KEY} has no effect with another loss. Type {needed}")
    settings = read_settings(config.actor_rollout_ref)
    if mistakes := [*_mistakes_of_run(config, settings.objective)]:
        raise ConfigError("\n".join(mistakes))


def _mistakes_of_actor(actor: Any, objective: Objective) -> Iterator[str]:
    """What in `actor_rollout_ref.actor` does not go with the objective, and what to type."""
    phases, needs = len(objective.phases), objective.needs
    if actor.strategy not in ("fsdp", "fsdp2"):
        yield (
            f"actor.strategy={actor.strategy}: rlobj works with fsdp2 and fsdp only. Type "
            "actor_rollout_ref.actor.strategy=fsdp2"
        )
    if actor.entropy_coeff:
        yield (
            f"actor.entropy_coeff={actor.entropy_coeff} acts beside the objective. Add an entropy "
            "bonus to the objective's penalties and type actor_rollout_ref.actor.entropy_coeff=0"
        )
    if actor.use_kl_loss and "ref_logprobs" not in needs.ever:
        yield (
            "actor.use_kl_loss=True acts beside the objective, which has no KL. Type "
            "actor_rollout_ref.actor.use_kl_loss=False, or write to a preset of your own: "
            "objective: {penalties: [{kind: kl, estimator: k3, coefficient: 0.001}]}"
        )
    if actor.get("use_prefix_grouper"):
        yield "actor.use_prefix_grouper=True was not tested with rlobj. Set it to False"
    if actor.ppo_epochs % phases:
        yield (
            f"the objective has {phases} phases, and each takes an epoch over the rollout. Type "
            f"actor_rollout_ref.actor.ppo_epochs={phases}, or a multiple; got {actor.ppo_epochs}"
        )
    if needs.rewards or objective.advantage.decoupled:
        yield (
            "the objective reads several rewards by name; verl's rm_scores has only their sum. "
            "Choose an objective of one reward"
        )


def _mistakes_of_run(config: Any, objective: Objective) -> Iterator[str]:
    """What in the rest of verl's configuration does not go with the objective."""
    critic, algorithm = config.critic.enable, config.algorithm
    correction = OmegaConf.select(config, "algorithm.rollout_correction") or {}
    rollout_is, mismatch = correction.get("rollout_is"), objective.mismatch
    if not config.trainer.use_v1:
        yield "the old trainer does not keep entropies. Type trainer.use_v1=True"
    if critic or (critic is None and algorithm.adv_estimator == "gae"):
        yield (
            "a critic would be trained, but the objective computes its advantages from rewards. "
            "Type algorithm.adv_estimator=grpo critic.enable=False"
        )
    if algorithm.use_kl_in_reward:
        yield (
            "algorithm.use_kl_in_reward=True acts beside the objective. Set reward_kl in the "
            "objective instead"
        )
    if OmegaConf.select(config, "distillation.enabled"):
        yield "distillation.enabled=True replaces the loss. Set it to False"
    if correction.get("bypass_mode"):
        yield (
            "algorithm.rollout_correction.bypass_mode=True: verl then does not score the rollout, "
            "and rules have no entropies to read. Set it to False"
        )
    if rollout_is and mismatch is not None:
        yield (
            f"algorithm.rollout_correction.rollout_is={rollout_is} and the objective's mismatch "
            f"{mismatch} correct the same gap. Type algorithm.rollout_correction.rollout_is=null, "
            "or choose an objective without mismatch"
        )
