"""What is checked when a run is about to start, and not when a finished run is read."""

import re
from collections.abc import Iterable, Iterator

from rlobj.base.errors import ConfigError, Message, Setting
from rlobj.rewards.functions import MAPPING
from rlobj.settings.run_config import RunConfig
from rlobj.settings.scores import require_scores


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
    judged = getattr(advantage, "each", advantage)  # of several rewards
    sampling = config.sampling
    if sampling.group_size == 1 and objective.reads_rewards and advantage.group_relative:
        raise ConfigError(
            f"sampling.group_size: 1 response per prompt, and {advantage.kind} compares the "
            "responses of a prompt with one another. Expected at least 2, such as ",
            Setting("sampling.group_size", 8),
            "; or an advantage that compares the whole batch: ",
            Setting("objective.advantage", "batch_whitened"),
        )
    if "reward" in config.columns.values() and not rewards.targets:
        raise ConfigError(
            f"columns: the reward {rewards.kind} returns none; use ",
            Setting("rewards.target", "FILE.py:FUNCTION"),
            ", or take another source than reward",
        )
    subtracts = {
        "rewards.overlong": (rewards.overlong and rewards.overlong.penalty, None),
        "objective.reward_kl": (objective.reward_kl.coefficient, 0),
    }
    for setting, (used, off) in subtracts.items():
        if judged.nonnegative and used:
            raise ConfigError(
                f"{setting} makes rewards negative, and {judged.kind} takes rewards of 0 or more. "
                "Use ",
                Setting(setting, off),
                " or ",
                Setting("objective.advantage", "group_centered"),
            )


def refuse_tools(config: RunConfig) -> None:
    """Check that the policy can read what its tools are.

    Raises:
        ConfigError: it is the embedded policy, and there are tools.
    """
    if config.environment.tools and config.model.name is None:
        raise ConfigError(
            "environment.tools: the embedded policy has no chat template, in which calls are "
            "written. Take another model; or leave tools out, and let it ask the calculator of its "
            "task: calculator"
        )


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
            "right: it gives numbers. Keep the groups with unequal rewards with ",
            Setting("sampling.dynamic.by", "reward"),
            f"; let its function return mappings such as {MAPPING}; or "
            "give a reward_model a threshold",
        )


def doubts(config: RunConfig) -> Iterator[str]:
    """Warnings about settings that are allowed and hardly what somebody wants."""
    depth = config.sampling.async_depth
    of_sampler, mismatch = config.training.old_logprobs == "sampler", config.objective.mismatch
    yield from unread_breaks(config)
    limits = config.environment.model_dump(exclude_defaults=True)
    if limits and not config.environment.active:
        yield unread_environment(limits)
    if of_sampler and mismatch is not None:
        yield Message(
            f"objective.mismatch ({mismatch.kind}) has no effect with training.old_logprobs="
            "sampler: ratios refer to the sampler's log-probs, so nothing is left to correct. Use ",
            Setting("objective.mismatch", None),
            " or ",
            Setting("training.old_logprobs", "policy"),
        )
    if depth and mismatch is None and not of_sampler:
        yield Message(
            f"sampling.async_depth={depth} without objective.mismatch: samples of older weights "
            "are used without a correction; use ",
            Setting("objective.mismatch", "{kind: truncate}"),
        )
    if config.sampling.dynamic and config.objective.scores_alone:
        yield "sampling.dynamic has no effect: the objective reads a score, and no reward"
    for name in config.scores:
        if name not in config.objective.read_scores:
            yield f"scores.{name} is not computed: the objective does not read it"


def unread_breaks(config: RunConfig) -> Iterator[str]:
    """Warnings about a text with a backslash and an n where a line break was meant."""
    for name in ("template", "test_template", "system"):
        if re.search(r"\\n(?![a-z])", getattr(config.data, name) or ""):  # and no \neq of LaTeX
            yield (
                f"data.{name} has the two characters \\ and n, which the model reads as they are. "
                "If a line break is meant, put the value in double quotes of its own"
            )


def unread_environment(names: Iterable[str]) -> str:
    """What is said of settings of conversations where there are none."""
    settings = ", ".join(f"environment.{name}" for name in names)
    return (
        f"nothing reads {settings}: there are no conversations without environment.target or "
        "environment.tools"
    )
