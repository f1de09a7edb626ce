"""What the settings of GRPOConfig mean beside an objective of rlobj: used, replaced, or refused."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from rlobj.base.errors import ConfigError, nearest
from rlobj.base.yaml import packaged_table
from rlobj.config.presets import Preset, load_preset
from rlobj.config.run_config import RunConfig
from rlobj.integrations.columns import check_columns
from rlobj.objectives.advantages import Decoupled, GroupCentered, GroupNormalized
from rlobj.objectives.mismatch import Mask, Mismatch, Truncate
from rlobj.objectives.objective import Objective
from rlobj.objectives.penalties import KL
from rlobj.objectives.surrogates import Clip, Surrogate

logger = logging.getLogger(__name__)

Settings = Mapping[str, Any]

PROVIDED = frozenset({"rewards", "old_logprobs", "entropy", "old_entropy"})
"""The columns that TRL always provides, besides `logprobs`."""

_TABLE = packaged_table("rlobj.integrations.trl", "settings.yaml")
_TEXTS: Mapping[str, str] = _TABLE["messages"]


def _option(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass
class ObjectiveConfig(GRPOConfig):
    """GRPOConfig with the options of an ObjectiveTrainer, for TrlParser, a command line and YAML.

    An argument of the trainer replaces the option of the same name.
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "output"]  # noqa: RUF012

    objective: str | None = _option(None, "a preset, or a preset file")
    advantages: str = _option("auto", "whose advantages: auto, trl or objective")
    selection: str | None = _option(None, "policy that rules read: current or old")
    record: str = _option("true", "true, false, or the folder of the record")
    output: dict[str, Any] | str | None = _option(None, "settings of the record, as JSON")  # noqa: RUF009


OPTIONS = ("objective", "advantages", "selection", "record", "output")


def options(config: Settings, *given: Any) -> dict[str, Any]:
    """The options of a trainer: its arguments, or else those of an ObjectiveConfig.

    Args:
        config: GRPOConfig or ObjectiveConfig.
        given: arguments of the trainer, in the order of `OPTIONS`; None = that of the config.

    Returns:
        The options. "objective" is a Preset if a name or path was given, and "preset" that name.

    Raises:
        ConfigError: an option has a value that is not allowed.
    """
    found: dict[str, Any] = {"preset": None}
    usual = ObjectiveConfig.__dataclass_fields__
    for name, each in zip(OPTIONS, given, strict=True):
        found[name] = config.get(name, usual[name].default) if each is None else each
    objective = found["objective"]
    preset = load_preset(objective) if isinstance(objective, str | Path) else objective
    training: Mapping[str, Any] = {}
    if isinstance(preset, Preset):
        found["preset"] = str(preset.path if objective is preset else objective)
        training = preset.config.get("training") or {}
    found["objective"] = preset
    found["selection"] = found["selection"] or training.get("selection", "current")
    for name, values in _TABLE["values"].items():
        if found[name] not in values:
            *others, last = map(repr, values)
            raise ConfigError(f"{name}={found[name]!r}; expected {', '.join(others)} or {last}")
    record = {"true": True, "false": False}.get(str(found["record"]).lower(), found["record"])
    path = isinstance(record, str | Path)
    if not isinstance(record, bool) and (not path or Path(record).is_file()):
        raise ConfigError(_TEXTS["record"].format(record))
    output: Any = found["output"] or {}
    RunConfig(output=output)
    return {**found, "record": record, "output": output}


def bounds(surrogate: Surrogate) -> dict[str, Any]:
    """The attributes of GRPOTrainer with which TRL's metrics `clip_ratio/...` are the surrogate's.

    A surrogate that clips in another way has no such metrics.
    """
    if not isinstance(surrogate, Clip) or surrogate.ratio == "product":
        return {"loss_type": "sapo"}
    low, high, level = surrogate.low, surrogate.high, surrogate.ratio
    if not (isinstance(low, float) and isinstance(high, float)):
        return {"loss_type": "sapo"}
    names = ("loss_type", "epsilon_low", "epsilon_high", "importance_sampling_level")
    return dict(zip(names, ("dapo", low, high, level), strict=True))


def defaults() -> Settings:
    """The default of each setting of GRPOConfig."""
    return {field.name: field.default for field in dataclasses.fields(GRPOConfig)}


def fitted(
    objective: str | Path | Preset | Objective | None, settings: Settings, sampler_logprobs: bool
) -> Objective:
    """The objective of a run in TRL, with the terms that its settings add.

    `beta` adds a KL to an objective that reads no reference. TRL's importance sampling correction
    for vLLM becomes the objective's mismatch correction.

    Args:
        objective: a preset's name, a preset file, a preset, or an objective.
        settings: of GRPOConfig.
        sampler_logprobs: the sampler returns log-probs.

    Raises:
        ConfigError: the objective or a setting cannot be used.
    """
    name = objective.name if isinstance(objective, Preset) else objective
    preset = None if isinstance(name, Objective) else str(name)
    objective = _read(objective, settings["max_completion_length"])
    usual = defaults()
    wrong = [
        _TEXTS["refused"].format(name, settings[name], advice.format(settings[name], **settings))
        for name, advice in _TABLE["refused"].items()
        if name in settings and settings[name] != usual[name]
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))
    reads = objective.needs.ever
    if settings["beta"] and "ref_logprobs" not in reads:
        kl = KL(
            coefficient=settings["beta"], max_gap=None, unbiased=settings["use_bias_correction_kl"]
        )
        objective = objective.replace(penalties=(*objective.penalties, kl))
    if settings["use_vllm"] and settings["vllm_importance_sampling_correction"]:
        if "sampler_logprobs" in reads:
            raise ConfigError(_TEXTS["corrected"].format(objective.reader("sampler_logprobs")))
        objective = objective.replace(mismatch=_correction(settings))
    reference = {"ref_logprobs"} if settings["beta"] else set()
    sampler = {"sampler_logprobs"} if sampler_logprobs else set()
    check_columns(objective, PROVIDED | reference | sampler, "TRL", _TABLE["advice"], preset)
    _check_phases(objective, settings)
    return objective


def _read(objective: Any, max_tokens: int) -> Objective:
    if isinstance(objective, Objective):
        return objective.resolve(max_tokens)
    if not isinstance(objective, str | Path | Preset):
        raise ConfigError(_TEXTS["objective"].format(objective))
    preset = objective if isinstance(objective, Preset) else load_preset(objective)
    sampling, rewards = preset.config.get("sampling") or {}, preset.config.get("rewards")
    found = {"sampling.dynamic": sampling.get("dynamic"), "rewards": rewards}
    if unused := [name for name, value in found.items() if value]:
        logger.warning(_TEXTS["unused"].format(preset.name, " and ".join(unused)))
    return preset.resolved(max_tokens)


def _correction(settings: Settings) -> Mismatch:
    """TRL's correction between vLLM and the trainer, as a mismatch of rlobj."""
    level, _, way = settings["vllm_importance_sampling_mode"].partition("_")
    low = settings["vllm_importance_sampling_clip_min"]
    high = settings["vllm_importance_sampling_clip_max"]
    if way == "mask":
        return Mask(level=level, low=low or 0.0, high=1e9 if high is None else high)
    if low is not None:
        raise ConfigError(_TEXTS["truncates"].format(low))
    return Truncate(level=level, cap=high)


def _check_phases(objective: Objective, settings: Settings) -> None:
    """Each phase is one round over the rollout; a window of updates has one phase."""
    phases, rounds = len(objective.phases), settings["num_iterations"]
    if phases == 1:
        return
    if rounds % phases:
        raise ConfigError(_TEXTS["phases"].format(phases, rounds))
    steps, window = settings["steps_per_generation"], settings["gradient_accumulation_steps"]
    if (steps or window) % window:
        raise ConfigError(_TEXTS["two_phases"].format(window, steps))


def scaled_as(objective: Objective, settings: Settings) -> bool:
    """Whether TRL's own advantages have the objective's formula, up to ε."""
    advantage, scale = objective.advantage, settings["scale_rewards"]
    if objective.reward_kl:
        return False
    if settings["multi_objective_aggregation"] == "normalize_then_sum":
        parts = (advantage.each, advantage.then) if isinstance(advantage, Decoupled) else ()
        scales = [part.scale for part in parts if isinstance(part, GroupNormalized)]
        return scales == ["group", "batch"]
    if isinstance(advantage, GroupNormalized):
        return advantage.scale == scale
    return isinstance(advantage, GroupCentered) and scale == "none"


def report_replaced(objective: Objective, settings: Settings, own_advantages: bool) -> None:
    """Log the settings that somebody has changed, and that have no effect beside the objective."""
    usual, names = defaults(), list(_TABLE["replaced"])
    names += ["scale_rewards", "multi_objective_aggregation"] if own_advantages else []
    changed = [
        f"{name}={settings[name]!r}"
        for name in names
        if name in settings and settings[name] != usual[name]
    ]
    if changed:
        logger.warning(_TEXTS["replaced"].format(", ".join(changed), objective=objective))


def report_own_loss(loss: Any) -> None:
    """Log that a loss, which a trainer behind the mixin makes, is not used."""
    made = getattr(loss, "__func__", loss)
    if made is not GRPOTrainer._compute_loss:
        logger.warning(_TEXTS["own_loss"].format(made.__qualname__))


def report_checkpoints(settings: Settings) -> None:
    """Log that checkpoints will lie inside rollouts, of which TRL keeps nothing."""
    rollout = settings["steps_per_generation"] * settings["num_iterations"]
    updates = rollout // math.gcd(rollout, settings["gradient_accumulation_steps"])
    save_steps = settings["save_steps"]
    if settings["save_strategy"] == "steps" and save_steps >= 1 and save_steps % updates:
        logger.warning(_TEXTS["checkpoints"].format(save_steps, updates))


def check_rewards(objective: Objective, names: Sequence[str]) -> None:
    """Check that the rewards that rules read by name exist.

    Raises:
        ConfigError: there is no such reward function, or two have this name.
    """
    for name, field in objective.needs.rewards.items():
        if names.count(name) != 1:
            advice = nearest(name, set(names)) if name not in names else " Several have this name."
            raise ConfigError(f"{field} reads the reward '{name}' of a reward function.{advice}")
