"""The preset of a run in verl, and verl's settings that do not go with it."""

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
_ACTOR = "actor_rollout_ref.actor"
_REQUIRED: dict[str, tuple[Any, str]] = {
    f"{_ACTOR}.entropy_coeff": (0, "add an entropy_bonus to the objective's penalties instead"),
    f"{_ACTOR}.use_prefix_grouper": (False, "it was not tested with rlobj"),
    "algorithm.use_kl_in_reward": (False, "set reward_kl in the objective instead"),
    "algorithm.rollout_correction.bypass_mode": (False, "rules would have no entropies to read"),
    "distillation.enabled": (False, "it replaces the loss"),
    "trainer.use_v1": (True, "the old trainer does not keep entropies"),
}
"""The value that a setting of verl must have, and why."""
_ALWAYS = {
    *("logprobs", "old_logprobs", "entropy", "old_entropy"),
    *("collision", "old_collision", "rewards"),
}
"""The columns that verl always provides."""
_ADVICE = {
    "ref_logprobs": "Type actor_rollout_ref.actor.use_kl_loss=True",
    "sampler_logprobs": "Type actor_rollout_ref.rollout.calculate_log_probs=True",
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
        ConfigError: there is no such preset, or it needs a column that verl does not provide.
    """
    check_version("verl", version("verl"), TESTED)
    name = OmegaConf.select(config, "rlobj")
    if not isinstance(name, str):
        what = f"loss_mode={LOSS_MODE} needs the name or file of a preset; got {name!r}"
        raise ConfigError(f"{what}. Type +{KEY}=stapo")
    preset = load_preset(name)
    objective = preset.resolved(config.rollout.response_length)
    provided = set(_ALWAYS)
    if config.actor.use_kl_loss:
        provided.add("ref_logprobs")
    if config.rollout.calculate_log_probs:
        provided.add("sampler_logprobs")
    check_columns(objective, provided, "verl", _ADVICE)
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
    if mistakes := [*_mistakes(config, settings.objective)]:
        raise ConfigError("\n".join(mistakes))


def _mistakes(config: Any, objective: Objective) -> Iterator[str]:
    """What in verl's configuration does not go with the objective, and what to type."""
    for name, (value, why) in _REQUIRED.items():
        if (other := OmegaConf.select(config, name)) not in (None, value):
            yield f"{name}={other}: {why}. Type {name}={value}"
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    phases, needs, critic = len(objective.phases), objective.needs, config.critic.enable
    if actor.strategy not in ("fsdp", "fsdp2"):
        yield f"{_ACTOR}.strategy={actor.strategy}: rlobj works with fsdp2 and fsdp only"
    if actor.use_kl_loss and "ref_logprobs" not in needs.ever:
        yield f"{_ACTOR}.use_kl_loss=True acts beside the objective, which has no KL: set False"
    if actor.ppo_epochs % phases:
        typed = f"{_ACTOR}.ppo_epochs={phases}, or a multiple; got {actor.ppo_epochs}"
        yield f"the objective has {phases} phases, each an epoch over the rollout. Type {typed}"
    if needs.rewards or objective.advantage.decoupled:
        yield "the objective reads several rewards by name; verl's rm_scores has only their sum"
    if critic or (critic is None and algorithm.adv_estimator == "gae"):
        yield "a critic would be trained. Type algorithm.adv_estimator=grpo critic.enable=False"
    weights = OmegaConf.select(config, "algorithm.rollout_correction.rollout_is")
    if weights and objective.mismatch is not None:
        what = f"algorithm.rollout_correction.rollout_is={weights} and {objective.mismatch}"
        yield f"{what} correct the same gap. Set the first to null"
