"""What the settings of GRPOConfig mean beside an objective of rlobj: used, replaced, or refused.

`settings.yaml` says it for each setting. The functions here find which of its rows apply to a run.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from rlobj.base.errors import ConfigError, nearest
from rlobj.base.yaml import packaged_table
from rlobj.config.presets import Preset, load_preset, merge
from rlobj.config.run_config import RunConfig
from rlobj.config.scores import require_scores
from rlobj.integrations.columns import check_columns
from rlobj.objectives.advantages import Decoupled, GroupCentered, GroupNormalized
from rlobj.objectives.mismatch import Mask, Truncate
from rlobj.objectives.objective import Objective
from rlobj.objectives.penalties import KL
from rlobj.objectives.surrogates import Clip, Surrogate
from rlobj.records.reading import refuse_recorded

logger = logging.getLogger(__name__)

Settings = Mapping[str, Any]

TABLE = packaged_table("rlobj.integrations.trl", "settings.yaml")
USUAL: Settings = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
"""The default of each setting of GRPOConfig."""


def _option(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass
class ObjectiveConfig(GRPOConfig):
    """GRPOConfig with the options of an ObjectiveTrainer, for TrlParser, a command line and YAML.

    An argument of the trainer replaces the option of the same name.
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "output", "columns", "scores"]  # noqa: RUF012

    objective: str | None = _option(None, "a preset, or a preset file")
    advantages: str = _option("auto", "whose advantages: auto, trl or objective")
    selection: str | None = _option(None, "policy that rules read: current or old")
    record: str = _option("true", "true, false, or the folder of the record")
    output: dict[str, Any] | str | None = _option(None, "settings of the record, as JSON")  # noqa: RUF009
    columns: dict[str, str] | str | None = _option(None, "data or reward, by column, as JSON")  # noqa: RUF009
    scores: dict[str, Any] | str | None = _option(None, "frozen models by name, as JSON")  # noqa: RUF009


def say(name: str, *values: Any, **named: Any) -> str:
    """A message of the table."""
    return TABLE["messages"][name].format(*values, **named)


def options(config: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a trainer: its arguments, or else those of an ObjectiveConfig.

    Args:
        config: GRPOConfig or ObjectiveConfig.
        given: arguments of the trainer, by name; None = that of the config.

    Returns:
        The options. "objective" is a Preset if a name or path was given, and "preset" that name.

    Raises:
        ConfigError: an option has a value that is not allowed.
    """
    fields, training = ObjectiveConfig.__dataclass_fields__, {}
    usual = {name: config.get(name, fields[name].default) for name in given}
    found = {name: usual[name] if value is None else value for name, value in given.items()}
    preset, own = (objective := found["objective"]), found["columns"]
    if isinstance(objective, str | Path):
        preset = load_preset(objective)
    if isinstance(preset, Preset):
        found["preset"] = str(preset.path if objective is preset else objective)
        training = preset.config.get("training") or {}
        own = {**(preset.config.get("columns") or {}), **(own or {})}
        found["scores"] = merge(preset.config.get("scores") or {}, found["scores"] or {})
    selection = found["selection"] or training.get("selection", "current")
    record = {"true": True, "false": False}.get(str(found["record"]).lower(), found["record"])
    found |= {"objective": preset, "selection": selection, "record": record}
    for name, values in TABLE["values"].items():
        if found[name] not in values:
            *others, last = map(repr, values)
            raise ConfigError(f"{name}={found[name]!r}; expected {', '.join(others)} or {last}")
    path = isinstance(record, str | Path)
    if not isinstance(record, bool) and (not path or Path(record).is_file()):
        raise ConfigError(say("record", record))
    output: Any = found["output"] or {}
    run = RunConfig(output=output, columns=own or {}, scores=found["scores"] or {})
    columns = run.columns
    if isinstance(preset, Preset):
        require_scores(run.scores, preset.objective.read_scores)
    refuse_recorded(columns)
    if other := [name for name, source in columns.items() if ":" in source]:
        raise ConfigError(say("own_function", other[0], columns[other[0]]))
    return {"preset": None, **found, "output": output, "columns": columns, "scores": run.scores}


def bounds(surrogate: Surrogate) -> dict[str, Any]:
    """The attributes of GRPOTrainer with which TRL's metrics `clip_ratio/...` are the surrogate's.

    A surrogate that clips in another way has no such metrics.
    """
    if isinstance(surrogate, Clip) and surrogate.ratio != "product":
        low, high, level = surrogate.low, surrogate.high, surrogate.ratio
        if isinstance(low, float) and isinstance(high, float):
            names = ("loss_type", "epsilon_low", "epsilon_high", "importance_sampling_level")
            return dict(zip(names, ("dapo", low, high, level), strict=True))
    return {"loss_type": "sapo"}


def changed(names: Collection[str], settings: Settings) -> list[str]:
    """Those of the settings that somebody has changed."""
    return [name for name in names if name in settings and settings[name] != USUAL[name]]


def fitted(
    objective: Any, settings: Settings, sampler_logprobs: bool, own: Collection[str] = ()
) -> Objective:
    """The objective of a run in TRL, with the terms that its settings add.

    `beta` adds a KL to an objective that reads no reference. TRL's importance sampling correction
    for vLLM becomes the objective's mismatch correction.

    Args:
        objective: a preset's name, a preset file, a preset, or an objective.
        settings: of GRPOConfig.
        sampler_logprobs: the sampler returns log-probs.
        own: the columns of the user's own that the run has.

    Raises:
        ConfigError: the objective or a setting cannot be used.
    """
    name = objective.name if isinstance(objective, Preset) else objective
    name = None if isinstance(name, Objective) else str(name)
    objective = _read(objective, settings["max_completion_length"])
    if wrong := {each: settings[each] for each in changed(TABLE["refused"], settings)}:
        advice = {each: TABLE["refused"][each].format(wrong[each], **settings) for each in wrong}
        lines = [say("refused", each, value, advice[each]) for each, value in wrong.items()]
        raise ConfigError("\n".join(lines))
    given = {"ref_logprobs": settings["beta"], "sampler_logprobs": sampler_logprobs}
    provided = {*own, *TABLE["provided"], *(column for column, known in given.items() if known)}
    advice = TABLE["advice"] | {name: say("own", name) for name in objective.columns}
    advice |= {f"{name}_logprob": say("score", name) for name in objective.scores}
    check_columns(objective, provided, "TRL", advice, name)
    phases, window = len(objective.phases), settings["gradient_accumulation_steps"]
    reads, reader = objective.needs.ever, objective.reader("sampler_logprobs")
    vllm = settings["use_vllm"] and settings["vllm_importance_sampling_correction"]
    level, _, way = settings["vllm_importance_sampling_mode"].partition("_")
    low, high = (settings[f"vllm_importance_sampling_clip_{end}"] for end in ("min", "max"))
    mistakes = {
        "corrected": vllm and "sampler_logprobs" in reads,
        "truncates": vllm and way != "mask" and low is not None,
        "phases": settings["num_iterations"] % phases,
        "two_phases": phases > 1 and (settings["steps_per_generation"] or window) % window,
    }
    if any(mistakes.values()):
        mistake = next(each for each, is_so in mistakes.items() if is_so)
        raise ConfigError(say(mistake, settings=settings, phases=phases, reader=reader))
    if settings["beta"] and "ref_logprobs" not in reads:
        unbiased = settings["use_bias_correction_kl"]
        kl = KL(coefficient=settings["beta"], max_gap=None, unbiased=unbiased)
        objective = objective.replace(penalties=(*objective.penalties, kl))
    if vllm:
        mask = {"level": level, "low": low or 0.0, "high": 1e9 if high is None else high}
        both = Mask(**mask) if way == "mask" else Truncate(level=level, cap=high)
        objective = objective.replace(mismatch=both)
    return objective


def _read(objective: Any, max_tokens: int) -> Objective:
    if isinstance(objective, Objective):
        return objective.resolve(max_tokens)
    if not isinstance(objective, str | Path | Preset):
        raise ConfigError(say("objective", objective))
    preset = objective if isinstance(objective, Preset) else load_preset(objective)
    sampling, rewards = preset.config.get("sampling") or {}, preset.config.get("rewards")
    found = {"sampling.dynamic": sampling.get("dynamic"), "rewards": rewards}
    if unused := [name for name, value in found.items() if value]:
        logger.warning(say("unused", preset.name, " and ".join(unused)))
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
    names = [*TABLE["replaced"], *(TABLE["replaced_advantages"] if own_advantages else ())]
    replaced = ", ".join(f"{name}={settings[name]!r}" for name in changed(names, settings))
    rollout = settings["steps_per_generation"] * settings["num_iterations"]
    updates = rollout // math.gcd(rollout, settings["gradient_accumulation_steps"])
    saved = settings["save_steps"] if settings["save_strategy"] == "steps" else 0
    made = getattr(loss, "__func__", loss)
    facts = {
        "replaced": (replaced, (replaced,)),
        "checkpoints": (saved >= 1 and saved % updates, (saved, updates)),
        "own_loss": (made is not GRPOTrainer._compute_loss, (made.__qualname__,)),
    }
    for name, (is_so, values) in facts.items():
        if is_so:
            logger.warning(say(name, *values, objective=objective))


def check_rewards(objective: Objective, names: Collection[str]) -> None:
    """Check that the rewards that rules read by name exist.

    Raises:
        ConfigError: there is no such reward function, or two have this name.
    """
    for name, field in objective.needs.rewards.items():
        if (count := [*names].count(name)) != 1:
            advice = " Several have this name." if count else nearest(name, {*names})
            raise ConfigError(f"{field} reads the reward '{name}' of a reward function.{advice}")
