"""The preset of a run in verl, and verl's settings that do not go with it."""

from __future__ import annotations

# pyright: reportMissingImports=false
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from omegaconf import OmegaConf

from rlobj.base.errors import ConfigError
from rlobj.base.yaml import packaged_table
from rlobj.config.presets import load_preset
from rlobj.installation import check_version
from rlobj.integrations.columns import check_columns
from rlobj.integrations.verl.names import LOSS_MODE
from rlobj.objectives.objective import Objective

KEY = "actor_rollout_ref.rlobj"
TESTED = "==0.9.1"
_ALWAYS = (
    *("logprobs", "old_logprobs", "entropy", "old_entropy", "collision", "old_collision"),
    "rewards",
)
_TABLE = packaged_table("rlobj.integrations.verl", "settings.yaml")
_ADVICE, _MISTAKES = _TABLE["advice"], _TABLE["mistakes"]


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
    provided = {*_ALWAYS}
    if config.actor.use_kl_loss:
        provided.add("ref_logprobs")
    if config.rollout.calculate_log_probs:
        provided.add("sampler_logprobs")
    check_columns(objective, provided, "verl", _ADVICE)
    _raise(_mistakes_of_actor(config, objective))
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
    _raise(_mistakes_of_run(config, settings.objective))


def _raise(mistakes: list[str]) -> None:
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _mistakes_of_actor(config: Any, objective: Objective) -> list[str]:
    """What in `actor_rollout_ref` does not go with the objective, and what to type."""
    actor, phases, needs = config.actor, len(objective.phases), objective.needs
    wrong = {
        "strategy": actor.strategy not in ("fsdp", "fsdp2"),
        "entropy_coeff": actor.entropy_coeff,
        "use_kl_loss": actor.use_kl_loss and "ref_logprobs" not in needs.ever,
        "use_prefix_grouper": actor.get("use_prefix_grouper"),
        "ppo_epochs": actor.ppo_epochs % phases,
        "rewards": needs.rewards or objective.advantage.decoupled,
    }
    return [
        _MISTAKES[name].format(actor=actor, phases=phases) for name, is_so in wrong.items() if is_so
    ]


def _mistakes_of_run(config: Any, objective: Objective) -> list[str]:
    """What in the rest of verl's configuration does not go with the objective."""
    critic, algorithm = config.critic.enable, config.algorithm
    correction = OmegaConf.select(config, "algorithm.rollout_correction") or {}
    twice, mismatch = correction.get("rollout_is"), objective.mismatch
    wrong = {
        "use_v1": not config.trainer.use_v1,
        "critic": critic or (critic is None and algorithm.adv_estimator == "gae"),
        "use_kl_in_reward": algorithm.use_kl_in_reward,
        "distillation": OmegaConf.select(config, "distillation.enabled"),
        "bypass_mode": correction.get("bypass_mode"),
        "rollout_is": twice and mismatch is not None,
    }
    shown = {"twice": twice, "mismatch": mismatch}
    return [_MISTAKES[name].format(**shown) for name, is_so in wrong.items() if is_so]
