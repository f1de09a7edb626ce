"""What is checked when a run is about to start, and not when a finished run is read."""

from __future__ import annotations

from rlobj.base.errors import ConfigError
from rlobj.config.run_config import CONFLICTS, DynamicSampling, RunConfig
from rlobj.config.scores import require_scores
from rlobj.rewards.function_worker import MAPPING

HIGHEST_LEARNING_RATE = 0.01
"""AdamW moves each weight by about the learning rate in an update, and the weights of language
models are about 0.02. A higher rate is warned about."""


def refuse_senseless(config: RunConfig) -> None:
    """Check settings with which a run would learn nothing, or end at its first long response.

    Raises:
        ConfigError: one response per prompt, and an advantage that compares those of a prompt; or
            a penalty with an advantage that refuses rewards below 0; or a column of a reward that
            returns none; or as `refuse_tools`.
    """
    refuse_tools(config)
    objective, rewards, advantage = config.objective, config.rewards, config.objective.advantage
    require_scores(config.scores, objective.read_scores)
    each = getattr(advantage, "each", advantage)  # of several rewards
    alone = config.sampling.group_size == 1 and objective.reads_rewards
    overlong = rewards.overlong and rewards.overlong.penalty
    wrong = {
        "sampling.group_size": alone and advantage.group_relative,  # which loads torch
        "columns": "reward" in config.columns.values() and not rewards.targets,
        "rewards.overlong": each.nonnegative and overlong,
        "objective.reward_kl": each.nonnegative and objective.reward_kl.coefficient,
    }
    for name in [name for name, is_so in wrong.items() if is_so]:
        raise ConfigError(CONFLICTS["senseless"][name].format(c=config, each=each))


def refuse_tools(config: RunConfig) -> None:
    """Check that the policy can read what its tools are.

    Raises:
        ConfigError: it is the embedded policy, and there are tools.
    """
    if config.environment.tools and config.model.name is None:
        raise ConfigError(CONFLICTS["senseless"]["environment.tools"])


def refuse_unknown_accuracy(config: RunConfig, says_right: bool) -> None:
    """Check that dynamic sampling gets what it compares.

    Args:
        config: the run.
        says_right: that of the grader, after its `check`.

    Raises:
        ConfigError: it compares accuracies, and the reward gives none.
    """
    dynamic = config.sampling.dynamic
    if dynamic is not None and dynamic.by == "accuracy" and not says_right:
        raise ConfigError(
            "sampling.dynamic.by is accuracy, and the reward does not say which responses are "
            "right: it gives numbers. Keep the groups with unequal rewards with: set "
            f"sampling.dynamic.by=reward; let its function return mappings such as {MAPPING}; or "
            "give a reward_model a threshold"
        )


def doubts(config: RunConfig) -> list[str]:
    """Warnings about settings that are allowed and hardly what somebody wants."""
    dynamic = config.sampling.dynamic or DynamicSampling()
    limits = config.environment.model_dump(exclude_defaults=True)
    found = {
        "environment": limits and not config.environment.active,
        "training.learning_rate": config.training.learning_rate > HIGHEST_LEARNING_RATE,
        "sampling.async_depth": config.sampling.async_depth and config.objective.mismatch is None,
        "sampling.dynamic.whole_batches": not dynamic.whole_batches
        and (dynamic.oversampling != 1 or dynamic.allow_fewer),
        "sampling.dynamic": config.sampling.dynamic and config.objective.scores_alone,
    }
    texts = [CONFLICTS["doubted"][name] for name, holds in found.items() if holds]
    names = ", ".join(f"environment.{name}" for name in limits)
    told = [text.format(c=config, most=HIGHEST_LEARNING_RATE, names=names) for text in texts]
    unread = [name for name in config.scores if name not in config.objective.read_scores]
    return told + [
        f"scores.{name} is not computed: the objective does not read it" for name in unread
    ]
