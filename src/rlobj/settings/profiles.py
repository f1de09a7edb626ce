"""Settings that fit a run to the embedded policy instead of the paper's models.

A profile is a partial RunConfig. It sets sizes, lengths, learning rates and the reward, and limits
updates per rollout, a value's warm-up and dynamic sampling. The objective and the other settings of
a preset do not change.
"""

from collections.abc import Mapping
from typing import Any

from rlobj.base.errors import Argument, ConfigError
from rlobj.base.yaml import packaged_table
from rlobj.data.gym import is_gym, refuse_missing
from rlobj.data.sources import require_source, source_names
from rlobj.data.tasks import TASKS

DEFAULT_TASK = "scratchpad"
"""The task of a run without a model: about a minute on a CPU."""

OWN_PROBLEMS_TASK = "addition"
"""The task whose policy learns a user's own problems: it reads digits, and answers directly."""

MOST_UPDATES = 2
"""Largest number of updates per rollout: two are enough for ratios other than 1, and a rollout of
the embedded policy has too little data for more. An on-policy preset stays on-policy."""

MOST_WARMUP = 5
"""Largest number of steps in which only a value is trained."""

_PROFILES = packaged_table("rlobj.settings", "profiles.yaml")
PROFILES: dict[str, dict[str, Any]] = _PROFILES["tasks"]
"""The profile of each task that has an embedded policy."""
OWN_PROBLEMS_PROFILE: dict[str, Any] = _PROFILES["own_problems"]
"""RL on a user's own problems: the question alone is the prompt."""

_WHOLE_BATCHES = {"whole_batches": False, "oversampling": 1, "allow_fewer": False}
"""A task that the policy has learned has hardly any group with a signal, and the run goes on."""


def limits(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a profile limits in the recipe of a preset.

    Args:
        settings: of the preset, by dotted path.
    """
    limited: dict[str, Any] = {}
    updates = settings.get("training.updates_per_step", 1)
    passes = settings.get("training.passes", 1)
    if isinstance(updates, int) and updates > MOST_UPDATES:
        limited = {"training": {"updates_per_step": MOST_UPDATES}}
    if isinstance(passes, int) and isinstance(updates, int):  # what else it is, is refused later
        most = max(MOST_UPDATES // max(updates, 1), 1)
        if passes > most:
            limited.setdefault("training", {})["passes"] = most
    if settings.get("sampling.dynamic.whole_batches"):
        limited["sampling"] = {"dynamic": _WHOLE_BATCHES}
    return limited


def profile_of_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What fits a run with values to the embedded policy: their learning rate and warm-up, and as
    many responses as the groups of other runs have.

    Args:
        settings: of the run, by dotted path.
    """
    fitted: dict[str, Any] = {}
    for path, value in settings.items():
        section, _, name = path.removesuffix(".value").partition(".")
        if section == "scores" and path.endswith(".value") and value is True:
            warmup = settings.get(f"scores.{name}.value_warmup", 0)
            fitted[name] = {**_PROFILES["value"]}
            if isinstance(warmup, int) and warmup > MOST_WARMUP:
                fitted[name]["value_warmup"] = MOST_WARMUP
    alone = fitted and settings.get("sampling.group_size") == 1
    sampling = {"sampling": _PROFILES["one_response"]} if alone else {}
    return {"scores": fitted, **sampling} if fitted else {}


def profile_of(source: Any, *, chosen: bool) -> dict[str, Any]:
    """Choose the profile of the embedded policy for a source of problems.

    Args:
        source: of the training problems; None = the default task.
        chosen: the user asked for the embedded policy, or passed rows from Python.

    Raises:
        ConfigError: the source is not a built-in task, and the user did not ask for this policy;
            or it is a dataset of reasoning-gym.
        DataError: a source is no known name, no path and no hub id.
        MissingExtra: it is one, and reasoning-gym is not installed.
    """
    if source is None:
        return PROFILES[DEFAULT_TASK]
    if isinstance(source, str) and source in PROFILES:
        return PROFILES[source]
    if is_gym(source):
        refuse_missing(source)
    if is_gym(source) or not chosen:
        for name in source_names(source):
            require_source(name)
        raise ConfigError(
            f"data.source: '{', '.join(source_names(source))}' needs a model: ",
            Argument("model", "NAME"),
            f". Without one, use a built-in task: {', '.join(PROFILES)}. For problems of digits "
            "and + - * , = only, use ",
            Argument("model", "embedded"),
        )
    return OWN_PROBLEMS_PROFILE


def settings_of_task(name: Any, tools: bool) -> dict[str, Any]:
    """What a task asks of every model: its reward, and its environment where no tools are named.

    Nothing if the name is that of another source of problems.
    """
    if not isinstance(name, str) or name not in TASKS or not TASKS[name].answer_after:
        return {}
    if tools or TASKS[name].environment is None:
        return {"rewards": {"kind": "exact", "after": TASKS[name].answer_after}}
    profile = PROFILES[name]
    grading = {key: profile[key] for key in ("rewards", "environment")}
    return grading | {"sampling": {"stop": profile["sampling"]["stop"]}}


def embedded_task(source: Any) -> str:
    """The task whose embedded policy a run without a model trains, by its source of problems."""
    return str(source) if str(source) in PROFILES else OWN_PROBLEMS_TASK
