"""What a caller hands in: names, and Python objects in place of what settings would open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj.base.targets import object_name, object_text
from rlobj.conversations.settings import named_tools
from rlobj.data import Problem
from rlobj.data.sources import Source
from rlobj.data.verifiers import is_environment, verifiers_problems
from rlobj.evaluation.engines import require_tokenizer
from rlobj.rewards import Grader, Reward, Several, function_grader
from rlobj.rewards.kinds import Ungraded
from rlobj.settings.layers import Layer, nested, reward_settings
from rlobj.settings.run_config import RunConfig

SETTING_OF = {
    "model": "model.name",
    "data": "data.source",
    "eval_on": "data.test",
    "reward": "rewards.target",
    "sampler": "sampling.engine",
    "environment": "environment.target",
    "tools": "environment.tools",
}
"""The setting that names an argument, or records that it was an object."""


@dataclass(frozen=True)
class CallerInputs:
    """What a caller hands in: names, Python objects, or None for what the configuration says.

    An object is used instead of what the configuration would open. All ranks must get the same.

    Attributes:
        model: a transformers model, which is trained in place.
        tokenizer: of the model.
        data: the rows to train on.
        eval_on: the held-out rows.
        reward: a function, or several of them.
        sampler: draws responses; the run does not close it.
        environment: makes the environment of a conversation.
        tools: names and functions that the policy may call.
        callbacks: `Callback` objects, which receive the events of the run.
    """

    model: Any = None
    tokenizer: Any = None
    data: Any = None
    eval_on: Any = None
    reward: Any = None
    sampler: Any = None
    environment: Any = None
    tools: Any = None
    callbacks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        """Read the names of tools.

        Raises:
            ConfigError: tools are something else; or a model comes without its tokenizer.
        """
        tools = None if self.tools is None else named_tools(self.tools)
        object.__setattr__(self, "tools", tools)
        if self.data is None and is_environment(self.environment):
            rows = [{"prompt": p.prompt, **p.extra} for p in verifiers_problems(self.environment)]
            object.__setattr__(self, "data", rows)
        require_tokenizer(self.model, self.tokenizer, passed="model" in self.local())

    def layers(self) -> list[Layer]:
        """The settings that name the arguments, one layer an argument."""
        local, layers = self.local(), []
        for name in SETTING_OF:
            if (value := getattr(self, name)) is not None:
                settings = _settings(name, value)
                if name in local and name != "sampler":  # its engine says so
                    settings["objects"] = {name: object_name(value)}
                layers.append((name, settings))
        return layers

    def local(self) -> list[str]:
        """The arguments that only this process has: no configuration can name them."""
        named = {
            "data": _are_sources(self.data),
            "reward": not (callable(self.reward) or self._functions),
            "tools": all(isinstance(tool, str) for tool in self.tools or ()),
        }
        return [
            name
            for name in SETTING_OF
            if not isinstance(getattr(self, name), str | Path | None) and not named.get(name)
        ]

    @property
    def _functions(self) -> dict[Any, Any]:
        """The functions among several rewards, by name."""
        entries = [entry for entry in _entries(self.reward) or () if isinstance(entry, Mapping)]
        return {e.get("name"): e["target"] for e in entries if callable(e.get("target"))}

    def passed(self, name: str) -> Any:
        """The object that was passed as this argument; None if it is a name or was not passed."""
        return getattr(self, name) if name in self.local() else None

    def grader(self, config: RunConfig, problems: Sequence[Problem]) -> Grader:
        """What grades responses to the problems; to be entered."""
        named = self.reward is not None or config.rewards.targets or config.rewards.models
        named = named or not config.rewards.needs_answers
        if not named and not any(problem.answer for problem in problems):
            return Ungraded()  # a score is all that the objective reads
        if isinstance(config.rewards, Several):
            return config.rewards.open(self._functions)
        if callable(self.reward):
            return function_grader(self.reward, object_name(self.reward), config.rewards)
        return config.rewards.open()


def _settings(name: str, value: Any) -> dict[str, Any]:
    """The settings that name an argument, with a text in place of a Python object."""
    if name == "reward":
        return {"rewards": _reward(value)}
    if name == "data" and _are_sources(value):
        return nested(SETTING_OF[name], list(value))
    if name == "tools":
        named = [tool if isinstance(tool, str) else _recorded(tool) for tool in value]
        return nested(SETTING_OF[name], named)
    if isinstance(value, str | Path):
        return nested(SETTING_OF[name], str(value))
    kinds = {"sampler": "object", "environment": _recorded(value), "model": _recorded(value)}
    return nested(SETTING_OF[name], kinds.get(name, object_text("rows")))


def _recorded(value: Any) -> str:
    """The record of a Python object: its name, from which nothing is imported."""
    return object_text(object_name(value))


def _are_sources(data: Any) -> bool:
    """Whether data are several sources, and no rows: these have a question."""
    return isinstance(data, list | tuple) and any(
        isinstance(row, str | Path)
        or (isinstance(row, Mapping) and "source" in row and row.keys() <= set(Source.keys()))
        for row in data
    )


def _reward(reward: Any) -> Any:
    if isinstance(reward, Reward):
        return reward.model_dump(mode="json")
    if (several := _entries(reward)) is not None:
        of = [
            {"kind": "custom", **entry, "target": _recorded(entry["target"])}
            if isinstance(entry, Mapping) and callable(entry.get("target"))
            else entry
            for entry in several
        ]
        return {**reward, "of": of} if _is_several(reward) else of
    if isinstance(reward, Mapping):
        return dict(reward)
    return reward_settings(reward)


def _entries(reward: Any) -> list[Any] | None:
    """Several rewards as a list of mappings; None = one reward."""
    if isinstance(reward, Mapping) and reward and all(map(callable, reward.values())):
        return [{"name": name, "target": function} for name, function in reward.items()]
    of = reward["of"] if _is_several(reward) else reward
    return list(of) if isinstance(of, list | tuple) else None


def _is_several(reward: Any) -> bool:
    return isinstance(reward, Mapping) and isinstance(reward.get("of"), list | tuple)
