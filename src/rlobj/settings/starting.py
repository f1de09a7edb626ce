"""What is checked when a run is about to start, and not when a finished run is read."""

import importlib.util
from collections.abc import Iterator

from rlobj.base.errors import ConfigError, Message, MissingExtra, Setting
from rlobj.rewards.functions import MAPPING
from rlobj.settings.run_config import RunConfig
from rlobj.settings.scores import require_scores


def require_extras(strategy: str, lora: bool = False) -> None:
    """Check that the packages of a strategy and of adapters are there, before a model is loaded.

    Raises:
        MissingExtra: one is not installed.
    """
    if strategy in ("zero2", "zero3") and importlib.util.find_spec("deepspeed") is None:
        instead = Message("Or use ", Setting("training.strategy", "fsdp2"), ", which needs none")
        raise MissingExtra("deepspeed", "deepspeed", f"training.strategy={strategy}", instead)
    if lora and importlib.util.find_spec("peft") is None:
        raise MissingExtra("peft", "lora", "training low-rank adapters")


def refuse_senseless(config: RunConfig) -> None:
    """Check settings with which a run would learn nothing, or end at its first long response.

    Raises:
        ConfigError: one response per prompt, and an advantage that compares those of a prompt; or
            a penalty with an advantage that refuses rewards below 0; or a column of a reward that
            returns none; or as `refuse_tools`.
    """
    refuse_tools(config)
    objective, advantage = config.objective, config.objective.advantage
    require_scores(config.scores, objective.read_scores)
    if objective.critic is not None and config.critic is None:
        raise ConfigError(
            f"the objective reads the value '{objective.critic}', and nothing trains it: use ",
            Setting(f"scores.{objective.critic}.value", True),
        )
    if config.sampling.group_size == 1 and objective.reads_rewards and advantage.group_relative:
        raise ConfigError(
            f"sampling.group_size: 1 response per prompt, and {advantage.kind} compares the "
            "responses of a prompt. Use ",
            Setting("sampling.group_size", 8),
            " or ",
            Setting("objective.advantage", "batch_whitened"),
        )
    if "reward" in config.columns.values() and not config.rewards.targets:
        raise ConfigError(
            f"columns: the reward {config.rewards.kind} returns none; use ",
            Setting("rewards.target", "FILE.py:FUNCTION"),
        )
    judged = getattr(advantage, "each", advantage)  # of several rewards
    overlong = config.rewards.overlong
    if judged.nonnegative and (objective.reward_kl.coefficient or (overlong and overlong.penalty)):
        raise ConfigError(
            f"{judged.kind} takes rewards of 0 or more, and rewards.overlong or "
            "objective.reward_kl makes them negative. Leave it out, or use ",
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
            "written. Take another model, or leave tools out"
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
            "sampling.dynamic.by is accuracy, and the reward does not say what is right. Use ",
            Setting("sampling.dynamic.by", "reward"),
            f", a function that returns {MAPPING}, or a reward_model's threshold",
        )


def doubts(config: RunConfig) -> Iterator[str]:
    """Warnings about settings that are allowed and hardly what somebody wants."""
    sampling = config.sampling
    of_sampler, mismatch = config.training.old_logprobs == "sampler", config.objective.mismatch
    if of_sampler and mismatch is not None:
        yield Message(
            f"objective.mismatch ({mismatch.kind}) has no effect with training.old_logprobs="
            "sampler, whose ratios refer to the sampler. Use ",
            Setting("objective.mismatch", None),
            " or ",
            Setting("training.old_logprobs", "policy"),
        )
    if sampling.ahead and mismatch is None and not of_sampler:
        depth = sampling.async_depth
        yield Message(
            f"sampling.async_depth={depth}" if depth else "sampling.schedule=continuous",
            " without objective.mismatch: samples of older weights are used without a correction; "
            "use ",
            Setting("objective.mismatch", "{kind: truncate}"),
        )
    if config.sampling.dynamic and config.objective.scores_alone:
        yield "sampling.dynamic has no effect: the objective trains on groups of equal rewards too"
    if config.critic is not None and not config.objective.values:
        name = config.objective.critic
        losses = Setting("objective.values", f"[{{kind: clipped_squared, value: {name}}}]")
        yield Message(f"scores.{name} is not trained, and stays what it is. Use ", losses)
    if config.critic is not None and config.critic.value_warmup >= config.training.steps:
        name, steps = config.objective.critic, config.training.steps
        yield f"scores.{name}.value_warmup: no policy is trained in {steps} steps. Lower it"
    for name in config.scores:
        if name not in {*config.objective.read_scores, config.objective.critic}:
            yield f"scores.{name} is not computed: the objective does not read it"
