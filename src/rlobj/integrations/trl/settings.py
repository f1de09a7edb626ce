"""What the settings of GRPOConfig mean beside an objective of rlobj: used, replaced, or refused."""

import dataclasses
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from rlobj.base.errors import ConfigError, nearest
from rlobj.integrations.columns import check_columns
from rlobj.objectives.advantages import Decoupled, GroupCentered, GroupNormalized
from rlobj.objectives.mismatch import Mask, Truncate
from rlobj.objectives.objective import Objective
from rlobj.objectives.penalties import KL
from rlobj.objectives.surrogates import Clip, Surrogate
from rlobj.runs.columns import refuse_recorded
from rlobj.settings.presets import Preset, load_preset, merge
from rlobj.settings.run_config import RunConfig
from rlobj.settings.scores import require_scores

logger = logging.getLogger(__name__)

Settings = Mapping[str, Any]

USUAL: Settings = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
"""The default of each setting of GRPOConfig."""

_REPLACED = (
    "loss_type",
    "epsilon",
    "epsilon_high",
    "importance_sampling_level",
    "sapo_temperature_neg",
    "sapo_temperature_pos",
    "vespo_k_pos",
    "vespo_lambda_pos",
    "vespo_k_neg",
    "vespo_lambda_neg",
)
"""Settings of TRL's loss, which the objective replaces."""
_REFUSED = (
    "use_liger_kernel",
    "delta",
    "top_entropy_quantile",
    "off_policy_mask_threshold",
    "entropy_coef",
    "use_adaptive_entropy",
)
"""Terms of TRL's loss that an objective has in its own words."""
_REPLACED_ADVANTAGES = ("scale_rewards", "multi_objective_aggregation")
"""Settings of TRL's advantages, which an objective may replace."""
_PROVIDED = ("rewards", "old_logprobs", "entropy", "old_entropy", "turn", "turn_reward")
"""The columns that TRL always provides, besides logprobs."""


def bounds(surrogate: Surrogate) -> dict[str, Any]:
    """The attributes of GRPOTrainer with which TRL's metrics `clip_ratio/...` are the surrogate's.

    A surrogate that clips in another way has no such metrics.
    """
    if isinstance(surrogate, Clip) and surrogate.ratio != "product":
        low, high, level = surrogate.low, surrogate.high, surrogate.ratio
        if isinstance(low, float) and isinstance(high, float):
            return {
                "loss_type": "dapo",
                "epsilon_low": low,
                "epsilon_high": high,
                "importance_sampling_level": level,
            }
    return {"loss_type": "sapo"}


def changed(names: Collection[str], settings: Settings) -> list[str]:
    """Those of the settings that somebody has changed."""
    return [name for name in names if name in settings and settings[name] != USUAL[name]]


def read_run(
    objective: Any, selection: str | None, columns: Any, scores: Any, output: Any
) -> tuple[Any, RunConfig]:
    """The objective or its preset, and what else the arguments of a trainer and the preset set.

    Raises:
        ConfigError: one has a value that is not allowed.
    """
    name = objective.path if isinstance(objective, Preset) else objective
    if isinstance(objective, str | Path):
        objective = load_preset(objective)
    preset = dict(objective.config) if isinstance(objective, Preset) else {}
    training = preset.get("training") or {}
    given: dict[str, Any] = {
        "preset": str(name) if preset else None,
        "columns": {**(preset.get("columns") or {}), **(columns or {})},
        "scores": merge(preset.get("scores") or {}, scores or {}),
        "training": {"selection": selection or training.get("selection", "current")},
        "output": output or {},
    }
    run = RunConfig(**given)
    if isinstance(objective, Preset):
        require_scores(run.scores, objective.objective.read_scores)
    refuse_recorded(run.columns)
    for column, source in run.columns.items():
        if ":" in source:
            raise ConfigError(
                f"columns.{column}={source}: TRL has no functions of tokens, which `rlobj train` "
                "calls. Expected data or reward"
            )
    return objective, run


def fitted(
    objective: Any, settings: Settings, sampler_logprobs: bool, columns: Collection[str] = ()
) -> Objective:
    """The objective of a run in TRL, with the terms that its settings add.

    `beta` adds a KL to an objective that reads no reference. TRL's importance sampling correction
    for vLLM becomes the objective's mismatch correction.

    Args:
        objective: a preset's name, a preset file, a preset, or an objective.
        settings: of GRPOConfig.
        sampler_logprobs: the sampler returns log-probs.
        columns: of the user's own that the run has, and of its scores.

    Raises:
        ConfigError: the objective or a setting cannot be used.
    """
    name = objective.name if isinstance(objective, Preset) else objective
    name = None if isinstance(name, Objective) else str(name)
    objective = _read(objective, settings["max_completion_length"])
    if refused := changed(_REFUSED, settings):
        values = ", ".join(f"{name}={settings[name]!r}" for name in refused)
        raise ConfigError(
            f"GRPOConfig({values}) belongs to TRL's loss, which the objective replaces. Leave it "
            "out; docs/trainers.md, Settings of TRL, has what to write in the objective instead"
        )
    optional = {"ref_logprobs": settings["beta"], "sampler_logprobs": sampler_logprobs}
    provided = {*columns, *_PROVIDED, *(name for name, present in optional.items() if present)}
    advice = {
        "ref_logprobs": "Set GRPOConfig(beta=...) to a number above 0, so that TRL loads a "
        "reference. The objective's own coefficient counts",
        "sampler_logprobs": "Set GRPOConfig(use_vllm=True), or pass a rollout_func that returns "
        "logprobs",
    }
    for column in objective.columns:
        advice[column] = (
            f"Say where this column of your own comes from, such as columns={{'{column}': 'data'}}"
        )
    for score in objective.scores:
        advice[f"{score}_logprob"] = (
            f"Name its model: scores={{'{score}': {{'model': NAME}}}}, or a run or a server"
        )
    check_columns(objective, provided, "TRL", advice, name)
    _check_phases(len(objective.phases), settings)
    reads = objective.needs.ever
    if settings["beta"] and "ref_logprobs" not in reads:
        unbiased = settings["use_bias_correction_kl"]
        kl = KL(coefficient=settings["beta"], max_gap=None, unbiased=unbiased)
        objective = objective.replace(penalties=(*objective.penalties, kl))
    if settings["use_vllm"] and settings["vllm_importance_sampling_correction"]:
        if "sampler_logprobs" in reads:
            raise ConfigError(
                f"{objective.reader('sampler_logprobs')} corrects for the sampler, and so does "
                "TRL's correction: set GRPOConfig(vllm_importance_sampling_correction=False)"
            )
        objective = objective.replace(mismatch=_mismatch(settings))
    return objective


def _check_phases(phases: int, settings: Settings) -> None:
    """Check that each phase of the objective is a round of its own.

    Raises:
        ConfigError: the numbers of TRL's rounds or micro-batches do not fit.
    """
    window, steps = settings["gradient_accumulation_steps"], settings["steps_per_generation"]
    if settings["num_iterations"] % phases:
        raise ConfigError(
            f"the objective has {phases} phases, each of them one round over the rollout: set "
            f"GRPOConfig(num_iterations={phases}), or a multiple of it; it is "
            f"{settings['num_iterations']}"
        )
    if phases > 1 and (steps or window) % window:
        raise ConfigError(
            f"GRPOConfig(gradient_accumulation_steps={window}, steps_per_generation={steps}): an "
            "update would cover two phases of the objective. Expected a steps_per_generation that "
            "is a multiple of gradient_accumulation_steps"
        )


def _mismatch(settings: Settings) -> Mask | Truncate:
    """TRL's importance sampling correction for vLLM, as a correction of an objective."""
    level, _, way = settings["vllm_importance_sampling_mode"].partition("_")
    low, high = (settings[f"vllm_importance_sampling_clip_{end}"] for end in ("min", "max"))
    if way == "mask":
        return Mask(level=level, low=low or 0.0, high=1e9 if high is None else high)
    if low is not None:
        raise ConfigError(
            f"GRPOConfig(vllm_importance_sampling_clip_min={low}) truncates small ratios, which no "
            "mismatch correction of rlobj does: use a mode that ends in _mask, or None"
        )
    return Truncate(level=level, cap=high)


def _read(objective: Any, max_tokens: int) -> Objective:
    if isinstance(objective, Objective):
        return objective.resolve(max_tokens)
    if not isinstance(objective, str | Path | Preset):
        raise ConfigError(
            f"objective={objective!r}; expected a preset's name, such as objective='stapo', the "
            "path of a preset file, or an rlobj.Objective"
        )
    preset = objective if isinstance(objective, Preset) else load_preset(objective)
    sampling, rewards = preset.config.get("sampling") or {}, preset.config.get("rewards")
    sections = {"sampling.dynamic": sampling.get("dynamic"), "rewards": rewards}
    if unused := [name for name, value in sections.items() if value]:
        logger.warning(
            f"preset {preset.name}: TRL samples and grades by its own settings, not by "
            f"{' and '.join(unused)} of the preset"
        )
    return preset.resolved(max_tokens)


def scaled_as(objective: Objective, settings: Settings) -> bool:
    """Whether TRL's own advantages have the objective's formula, up to ε."""
    apart = settings["multi_objective_aggregation"] == "normalize_then_sum"
    scale = ("group", "batch") if apart else settings["scale_rewards"]
    return not objective.reward_kl.coefficient and _scale(objective.advantage) == scale


def _scale(advantage: Any) -> Any:
    """The name that TRL has for the scale of an advantage; None = it has none."""
    if isinstance(advantage, Decoupled):
        return _scale(advantage.each), _scale(advantage.then)
    if isinstance(advantage, GroupNormalized):
        return advantage.scale
    return "none" if isinstance(advantage, GroupCentered) else None


def report(objective: Objective, settings: Settings, own_advantages: bool, loss: Any) -> None:
    """Log which settings have no effect, and other things that somebody may not expect.

    Args:
        objective: of the run.
        settings: of GRPOConfig.
        own_advantages: the objective computes the advantages.
        loss: `_compute_loss` of the trainer behind the mixin.
    """
    names = _REPLACED + (_REPLACED_ADVANTAGES if own_advantages else ())
    if replaced := ", ".join(f"{name}={settings[name]!r}" for name in changed(names, settings)):
        logger.warning(
            f"GRPOConfig({replaced}) has no effect: the objective's surrogate is "
            f"{objective.surrogate}, its divisor {objective.divisor}, and its advantage "
            f"{objective.advantage}"
        )
    method = getattr(loss, "__func__", loss)
    if method is not GRPOTrainer._compute_loss:
        logger.warning(
            f"{method.__qualname__} is not called: the objective makes the loss. To add a term, "
            "override _compute_loss in the class that names ObjectiveMixin, and add it to "
            "super()._compute_loss(...)"
        )


def check_rewards(objective: Objective, names: Collection[str]) -> None:
    """Check that the rewards that rules read by name exist.

    Raises:
        ConfigError: there is no such reward function, or two have this name.
    """
    for name, field in objective.needs.rewards.items():
        if (count := [*names].count(name)) != 1:
            advice = " Several have this name." if count else nearest(name, {*names})
            raise ConfigError(f"{field} reads the reward '{name}' of a reward function.{advice}")
