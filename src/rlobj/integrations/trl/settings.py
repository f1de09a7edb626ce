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

SELECTIONS = ("current", "old")
PROVIDED = frozenset({"rewards", "old_logprobs", "entropy", "old_entropy"})
"""The columns that TRL always provides, besides `logprobs`."""

_TABLE = packaged_table("rlobj.integrations.trl", "settings.yaml")
REFUSED: Mapping[str, str] = _TABLE["refused"]
"""Terms of TRL's own loss, which is not used. Each with what to type instead of a value {0}."""
REPLACED: Sequence[str] = _TABLE["replaced"]
"""Settings of TRL's loss, which the objective replaces."""


@dataclasses.dataclass
class ObjectiveConfig(GRPOConfig):
    """GRPOConfig with the options of an ObjectiveTrainer, for TrlParser, a command line and YAML.

    An argument of the trainer replaces the option of the same name.
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "output"]  # noqa: RUF012

    objective: str | None = dataclasses.field(
        default=None, metadata={"help": "a preset, or a preset file"}
    )
    advantages: str = dataclasses.field(default="auto", metadata={"help": "auto, trl or objective"})
    selection: str | None = dataclasses.field(
        default=None, metadata={"help": "policy that rules read: current or old"}
    )
    record: str = dataclasses.field(
        default="true", metadata={"help": "true, false, or the record's folder"}
    )
    output: dict[str, Any] | str | None = dataclasses.field(
        default=None, metadata={"help": "settings of the record, as JSON"}
    )


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
    usual = ObjectiveConfig.__dataclass_fields__
    found = {
        name: config.get(name, usual[name].default) if value is None else value
        for name, value in zip(OPTIONS, given, strict=True)
    }
    objective = found["objective"]
    if isinstance(objective, str | Path):
        found["objective"] = load_preset(objective)
    preset = found["objective"] if isinstance(found["objective"], Preset) else None
    found["preset"] = preset and str(preset.path if isinstance(objective, Preset) else objective)
    training = (preset.config.get("training") or {}) if preset else {}
    found["selection"] = found["selection"] or training.get("selection", "current")
    for name, values in (("advantages", ("auto", "trl", "objective")), ("selection", SELECTIONS)):
        if found[name] not in values:
            expected = f"{', '.join(map(repr, values[:-1]))} or {values[-1]!r}"
            raise ConfigError(f"{name}={found[name]!r}; expected {expected}")
    record = found["record"]
    record = {"true": True, "false": False}.get(str(record).lower(), record)
    path = isinstance(record, str | Path)
    if not isinstance(record, bool) and (not path or Path(record).is_file()):
        raise ConfigError(f"record={record!r}; expected True, False, or the path of a folder")
    found["record"], found["output"] = record, found["output"] or {}
    RunConfig(output=found["output"])
    return found


def bounds(surrogate: Surrogate) -> dict[str, Any]:
    """The attributes of GRPOTrainer with which TRL's metrics `clip_ratio/...` are the surrogate's.

    A surrogate that clips in another way has no such metrics.
    """
    usual = isinstance(surrogate, Clip) and surrogate.ratio != "product"
    if not (usual and isinstance(surrogate.low, float) and isinstance(surrogate.high, float)):
        return {"loss_type": "sapo"}
    low, high, level = surrogate.low, surrogate.high, surrogate.ratio
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
        f"GRPOConfig({name}={settings[name]!r}) is refused: it belongs to TRL's loss, which the "
        f"objective replaces. Leave it out; {advice.format(settings[name], **settings)}"
        for name, advice in REFUSED.items()
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
            raise ConfigError(
                f"{objective.reader('sampler_logprobs')} corrects for the sampler, and so does "
                "TRL's correction: set GRPOConfig(vllm_importance_sampling_correction=False)"
            )
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
        raise ConfigError(
            f"objective={objective!r}; expected a preset's name, such as objective='stapo', the "
            "path of a preset file, or an rlobj.Objective"
        )
    preset = objective if isinstance(objective, Preset) else load_preset(objective)
    sampling, rewards = preset.config.get("sampling") or {}, preset.config.get("rewards")
    unused = ["sampling.dynamic"] if sampling.get("dynamic") else []
    unused += ["rewards"] if rewards else []
    if unused:
        logger.warning(
            "preset %s: TRL samples and grades by its own settings, not by %s of the preset",
            preset.name,
            " and ".join(unused),
        )
    return preset.resolved(max_tokens)


def _correction(settings: Settings) -> Mismatch:
    """TRL's correction between vLLM and the trainer, as a mismatch of rlobj."""
    level, _, way = settings["vllm_importance_sampling_mode"].partition("_")
    low = settings["vllm_importance_sampling_clip_min"]
    high = settings["vllm_importance_sampling_clip_max"]
    if way == "mask":
        return Mask(level=level, low=low or 0.0, high=1e9 if high is None else high)
    if low is not None:
        raise ConfigError(
            f"GRPOConfig(vllm_importance_sampling_clip_min={low}) truncates small ratios, which no "
            "mismatch correction of rlobj does: use a mode that ends in _mask, or None"
        )
    return Truncate(level=level, cap=high)


def _check_phases(objective: Objective, settings: Settings) -> None:
    """Each phase is one round over the rollout; a window of updates has one phase."""
    phases, rounds = len(objective.phases), settings["num_iterations"]
    if phases == 1:
        return
    if rounds % phases:
        raise ConfigError(
            f"the objective has {phases} phases, each of them one round over the rollout: set "
            f"GRPOConfig(num_iterations={phases}), or a multiple of it; it is {rounds}"
        )
    steps, window = settings["steps_per_generation"], settings["gradient_accumulation_steps"]
    if (steps or window) % window:
        raise ConfigError(
            f"GRPOConfig(gradient_accumulation_steps={window}, steps_per_generation={steps}): an "
            "update would cover two phases of the objective. Expected a steps_per_generation that "
            "is a multiple of gradient_accumulation_steps"
        )


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
    usual, names = defaults(), list(REPLACED)
    names += ["scale_rewards", "multi_objective_aggregation"] if own_advantages else []
    changed = [
        f"{name}={settings[name]!r}"
        for name in names
        if name in settings and settings[name] != usual[name]
    ]
    if changed:
        logger.warning(
            "GRPOConfig(%s) has no effect: the objective's surrogate is %s, its divisor %s, and "
            "its advantage %s",
            ", ".join(changed),
            objective.surrogate,
            objective.divisor,
            objective.advantage,
        )


def report_own_loss(loss: Any) -> None:
    """Log that a loss, which a trainer behind the mixin makes, is not used."""
    made = getattr(loss, "__func__", loss)
    if made is not GRPOTrainer._compute_loss:
        logger.warning(
            "%s is not called: the objective makes the loss. To add a term, override _compute_loss "
            "in the class that names ObjectiveMixin, and add it to super()._compute_loss(...)",
            made.__qualname__,
        )


def report_checkpoints(settings: Settings) -> None:
    """Log that checkpoints will lie inside rollouts, of which TRL keeps nothing."""
    rollout = settings["steps_per_generation"] * settings["num_iterations"]
    updates = rollout // math.gcd(rollout, settings["gradient_accumulation_steps"])
    save_steps = settings["save_steps"]
    if settings["save_strategy"] == "steps" and save_steps >= 1 and save_steps % updates:
        logger.warning(
            "GRPOConfig(save_steps=%g): some checkpoints lie inside a rollout. A run that resumes "
            "from one of them samples a new rollout, and the record lacks the updates before. "
            "Expected a multiple of %d",
            save_steps,
            updates,
        )


def check_rewards(objective: Objective, names: Sequence[str]) -> None:
    """Check that the rewards that rules read by name exist.

    Raises:
        ConfigError: there is no such reward function, or two have this name.
    """
    for name, field in objective.needs.rewards.items():
        if names.count(name) != 1:
            advice = nearest(name, set(names)) if name not in names else " Several have this name."
            raise ConfigError(f"{field} reads the reward '{name}' of a reward function.{advice}")
