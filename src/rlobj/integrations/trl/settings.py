"""What settings of GRPOConfig mean beside an objective of rlobj: used, replaced, or refused."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from rlobj.base.errors import ConfigError, nearest, warn
from rlobj.integrations.columns import check_columns
from rlobj.objectives.advantages import Decoupled, GroupCentered, GroupNormalized
from rlobj.objectives.mismatch import Mask, Truncate
from rlobj.objectives.objective import Objective
from rlobj.objectives.penalties import KL
from rlobj.runs.columns import refuse_recorded
from rlobj.settings.presets import Preset, load_preset, merge
from rlobj.settings.run_config import RunConfig
from rlobj.settings.scores import require_scores

Settings = Mapping[str, Any]

USUAL: Settings = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
"""The default of each setting of GRPOConfig."""

_REPLACED = (
    *("loss_type", "epsilon", "epsilon_high", "importance_sampling_level"),
    *("sapo_temperature_neg", "sapo_temperature_pos"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
)
"""Settings of TRL's loss, which the objective replaces."""
_ADVANTAGES = ("scale_rewards", "multi_objective_aggregation")
"""Settings of TRL's advantages, which an objective may replace."""
_REFUSED = (
    *("use_liger_kernel", "delta", "top_entropy_quantile", "off_policy_mask_threshold"),
    *("entropy_coef", "use_adaptive_entropy"),
)
"""Terms of TRL's loss that an objective has in its own words."""
_PROVIDED = ("rewards", "old_logprobs", "entropy", "old_entropy", "turn", "turn_reward")
"""The columns that TRL always provides, besides logprobs."""


def changed(names: Collection[str], settings: Settings) -> str:
    """Those of the settings that somebody has changed, with their values."""
    values = {name: settings[name] for name in names if name in settings}
    return ", ".join(f"{name}={value!r}" for name, value in values.items() if value != USUAL[name])


FEW = (
    *("objective/kept_fraction", "objective/clip_fraction", "tokens/touched"),
    *("policy/kl_old", "policy/ratio_max"),
)
"""The metrics of `output={"metrics": "few"}`: what the objective did, and how far it moved."""


def logged_metrics(chosen: Any) -> tuple[str, ...]:
    """The names of the metrics that TRL logs, where * stands for any text.

    Raises:
        ConfigError: they are not "all", "few" or a list of texts.
    """
    if not (chosen in ("all", "few") or isinstance(chosen, list | tuple)):
        raise ConfigError(
            f"output: metrics is {chosen!r}; expected 'all', 'few', or a list of names"
        )
    return {"all": ("*",), "few": FEW}[chosen] if isinstance(chosen, str) else tuple(chosen)


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
            raise ConfigError(f"columns.{column}={source}: in TRL, expected data or reward")
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
    objective = _read(objective, settings["max_completion_length"])
    if values := changed(_REFUSED, settings):
        instead = "See docs/trainers.md, Settings of TRL, for what to write in the objective"
        raise ConfigError(f"GRPOConfig({values}) is of TRL's loss, which is replaced. {instead}")
    optional = {"ref_logprobs": settings["beta"], "sampler_logprobs": sampler_logprobs}
    provided = {*columns, *_PROVIDED, *(name for name, present in optional.items() if present)}
    advice = {
        "ref_logprobs": "Set GRPOConfig(beta=...) above 0, so that TRL loads a reference",
        "sampler_logprobs": "Set GRPOConfig(use_vllm=True), or return logprobs in a rollout_func",
    }
    for column in objective.columns:
        advice[column] = f"Say where it comes from, such as columns={{'{column}': 'data'}}"
    for score in objective.scores:
        advice[f"{score}_logprob"] = f"Name its model: scores={{'{score}': {{'model': NAME}}}}"
    check_columns(objective, provided, "TRL", advice)
    _check_phases(len(objective.phases), settings)
    reads = objective.needs.ever
    if settings["beta"] and "ref_logprobs" not in reads:
        unbiased = settings["use_bias_correction_kl"]
        kl = KL(coefficient=settings["beta"], max_gap=None, unbiased=unbiased)
        objective = objective.replace(penalties=(*objective.penalties, kl))
    if settings["use_vllm"] and settings["vllm_importance_sampling_correction"]:
        if "sampler_logprobs" in reads:
            what = f"{objective.reader('sampler_logprobs')} corrects for the sampler"
            typed = "vllm_importance_sampling_correction=False"
            raise ConfigError(f"{what}: set GRPOConfig({typed})")
        objective = objective.replace(mismatch=_mismatch(settings))
    return objective


def _check_phases(phases: int, settings: Settings) -> None:
    """Check that each phase of the objective is a round of its own.

    Raises:
        ConfigError: the numbers of TRL's rounds or micro-batches do not fit.
    """
    window, steps = settings["gradient_accumulation_steps"], settings["steps_per_generation"]
    if settings["num_iterations"] % phases:
        given = settings["num_iterations"]
        what = f"the objective has {phases} phases, each one round over the rollout"
        raise ConfigError(f"{what}: set num_iterations={phases}, or a multiple; got {given}")
    if phases > 1 and (steps or window) % window:
        what = (
            f"steps_per_generation={steps} is no multiple of gradient_accumulation_steps={window}"
        )
        raise ConfigError(f"{what}: an update would cover two phases")


def _mismatch(settings: Settings) -> Mask | Truncate:
    """TRL's importance sampling correction for vLLM, as a correction of an objective."""
    level, _, way = settings["vllm_importance_sampling_mode"].partition("_")
    low, high = (settings[f"vllm_importance_sampling_clip_{end}"] for end in ("min", "max"))
    if way == "mask":
        return Mask(level=level, low=low or 0.0, high=1e9 if high is None else high)
    if low is not None:
        what = f"GRPOConfig(vllm_importance_sampling_clip_min={low}) truncates small ratios"
        raise ConfigError(f"{what}, which rlobj does not: use a mode that ends in _mask, or None")
    return Truncate(level=level, cap=high)


def _read(objective: Any, max_tokens: int) -> Objective:
    if isinstance(objective, Objective):
        return objective.resolve(max_tokens)
    if not isinstance(objective, str | Path | Preset):
        expected = "expected the name or file of a preset, such as 'stapo', or an Objective"
        raise ConfigError(f"objective={objective!r}; {expected}")
    preset = objective if isinstance(objective, Preset) else load_preset(objective)
    sampling, rewards = preset.config.get("sampling") or {}, preset.config.get("rewards")
    sections = {"sampling.dynamic": sampling.get("dynamic"), "rewards": rewards}
    if unused := " and ".join(name for name, value in sections.items() if value):
        warn(f"preset {preset.name}: TRL does not read its {unused}")
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
    """Log which settings have no effect, and a loss that is not called.

    Args:
        objective: of the run.
        settings: of GRPOConfig.
        own_advantages: the objective computes the advantages.
        loss: `_compute_loss` of the trainer behind the mixin.
    """
    if values := changed(_REPLACED + (_ADVANTAGES if own_advantages else ()), settings):
        parts = f"surrogate {objective.surrogate}, divisor {objective.divisor}"
        parts += f", advantage {objective.advantage}"
        warn(f"GRPOConfig({values}) has no effect: the objective has the {parts}")
    method = getattr(loss, "__func__", loss)
    if method is not GRPOTrainer._compute_loss:
        what = f"{method.__qualname__} is not called: the objective makes the loss"
        warn(f"{what}. To add a term, override it in the class that names ObjectiveMixin")


def check_rewards(objective: Objective, names: Collection[str]) -> None:
    """Check that the rewards that rules read by name exist.

    Raises:
        ConfigError: there is no such reward function, or two have this name.
    """
    for name, field in objective.needs.rewards.items():
        if (count := [*names].count(name)) != 1:
            advice = " Several have this name." if count else nearest(name, {*names})
            raise ConfigError(f"{field} reads the reward '{name}' of a reward function.{advice}")
