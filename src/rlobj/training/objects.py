"""Python objects that a run is started with, and what its configuration says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, RlobjError
from rlobj.base.targets import PYTHON_OBJECT, import_target
from rlobj.config.layers import Layer, nested, reward_settings
from rlobj.config.run_config import RunConfig
from rlobj.data import Problem, load_problems
from rlobj.models.policy import policy_of
from rlobj.rewards import Grader, Reward, Several, function_grader
from rlobj.training.loop.given import Given

_SETTINGS = {
    "model": "model.name",
    "data": "data.source",
    "eval_on": "data.test",
    "reward": "rewards.target",
    "sampler": "sampling.engine",
}
"""The setting that names each argument, or records that it was an object."""

_SAMPLER = ("dtype", "sample", "sync", "received", "sleep", "close")
"""The members of a `Sampler` that training uses."""


@dataclass(frozen=True)
class Objects:
    """What a caller passed as model, data, ...: names, Python objects, or None.

    The attributes are the arguments of `rlobj.train`.
    """

    model: Any = None
    tokenizer: Any = None
    data: Any = None
    eval_on: Any = None
    reward: Any = None
    sampler: Any = None

    def __post_init__(self) -> None:
        """Check the arguments without using them.

        Raises:
            ConfigError: an argument that is neither a name nor a fitting object.
        """
        local = self.local()
        if "model" in local and self.tokenizer is None:
            raise ConfigError(
                f"model is a {type(self.model).__name__} object: pass its tokenizer as well, "
                "as tokenizer=..."
            )
        if self.tokenizer is not None and "model" not in local:
            raise ConfigError("tokenizer= is for a model object; a folder or hub id has its own")
        rows = [
            isinstance(x, Iterable) and not isinstance(x, Mapping)
            for x in (self.data, self.eval_on)
        ]
        missing = [name for name in _SAMPLER if not hasattr(self.sampler, name)]
        checks = {
            "model": (hasattr(self.model, "config"), "a hub id, a folder, or a transformers model"),
            "data": (rows[0], "a name, a path, or an iterable of dicts"),
            "eval_on": (rows[1], "a name, a path, or an iterable of dicts"),
            "reward": (
                callable(self.reward) or bool(self._functions),
                "a kind, a mapping with 'kind', 'file.py:function', a function, a dict of "
                "functions, or a list of mappings with 'name'",
            ),
            "sampler": (
                not missing,
                "transformers, vllm, vllm-server, or an rlobj.Sampler: it has no "
                f"{', '.join(missing)}",
            ),
            "tokenizer": (hasattr(self.tokenizer, "decode"), "a transformers tokenizer"),
        }
        for name in [*local, *(["tokenizer"] if "model" in local else [])]:
            fits, expected = checks[name]
            if not fits:
                kind = type(getattr(self, name)).__name__
                raise ConfigError(f"{name} is a {kind}; expected {expected}")

    def local(self) -> list[str]:
        """The arguments that only this process has: no configuration can name them."""
        named = {name for name in _SETTINGS if isinstance(getattr(self, name), str | Path | None)}
        named_functions = all(_target(each) is not None for each in self._functions.values())
        settings = isinstance(self.reward, Mapping | list | Reward) and named_functions
        if settings or _target(self.reward) is not None:
            named.add("reward")
        return [name for name in _SETTINGS if name not in named]

    def layers(self) -> list[Layer]:
        """The settings that name the arguments, one layer an argument."""
        return [
            (name, self._reward() if name == "reward" else nested(path, self._text(name)))
            for name, path in _SETTINGS.items()
            if getattr(self, name) is not None
        ]

    def _text(self, name: str) -> str:
        value = getattr(self, name)
        if name not in self.local():
            return str(value)
        if name == "sampler":
            return "object"
        return f"{PYTHON_OBJECT}: {type(value).__name__ if name == 'model' else 'rows'}>"

    def _reward(self) -> dict[str, Any]:
        reward = self.reward
        if isinstance(reward, Reward):
            return {"rewards": reward.model_dump(mode="json")}
        if (several := _entries(reward)) is not None:
            of = [_settings(each) for each in several]
            return {"rewards": {**reward, "of": of} if _is_several(reward) else of}
        if isinstance(reward, Mapping):
            return {"rewards": dict(reward)}
        return {"rewards": reward_settings(reward if isinstance(reward, str) else _text(reward))}

    @property
    def _functions(self) -> dict[Any, Any]:
        """The functions among several rewards, by name."""
        entries = [each for each in _entries(self.reward) or () if isinstance(each, Mapping)]
        return {e.get("name"): e["target"] for e in entries if callable(e.get("target"))}

    def given(self, config: RunConfig) -> Given:
        """The objects in the form that the trainer uses.

        Raises:
            ConfigError: a model that cannot be trained.
            DataError: rows that cannot be read.
        """
        local = self.local()
        rows = list(self.data) if "data" in local else None
        test: list[Problem] | None = None
        if config.evaluation.every and "eval_on" in local:
            test = load_problems(config.data, "test", self.eval_on)
        elif config.evaluation.every and rows is not None and config.data.test_fraction:
            test = load_problems(config.data, "test", rows)
        return Given(
            policy=policy_of(self.model, self.tokenizer, config.model, config.data)
            if "model" in local
            else None,
            train_problems=None if rows is None else load_problems(config.data, "train", rows),
            test_problems=test,
            grader=self._grader(config) if callable(self.reward) or self._functions else None,
            sampler=self.sampler if "sampler" in local else None,
        )

    def _grader(self, config: RunConfig) -> Grader:
        if isinstance(config.rewards, Several):
            return config.rewards.open(self._functions)
        return function_grader(self.reward, _name(self.reward), config.rewards)


def recorded_objects(config: RunConfig) -> list[str]:
    """The arguments of `rlobj.train` that were objects when the run was started."""
    texts = {"model": config.model.name, "data": config.data.source, "eval_on": config.data.test}
    found = [name for name, text in texts.items() if (text or "").startswith(PYTHON_OBJECT)]
    if f"'{PYTHON_OBJECT}" in str(config.rewards.recorded()):
        found.append("reward")
    return [*found, *(["sampler"] if config.sampling.engine == "object" else [])]


def _entries(reward: Any) -> list[Any] | None:
    """Several rewards as a list of mappings; None = one reward."""
    if isinstance(reward, Mapping) and reward and all(map(callable, reward.values())):
        return [{"name": name, "target": function} for name, function in reward.items()]
    of = reward["of"] if _is_several(reward) else reward
    return list(of) if isinstance(of, list | tuple) else None


def _is_several(reward: Any) -> bool:
    return isinstance(reward, Mapping) and isinstance(reward.get("of"), list | tuple)


def _settings(entry: Any) -> Any:
    """One of several rewards with a text in place of a function."""
    if isinstance(entry, Mapping) and callable(entry.get("target")):
        return {"kind": "custom", **entry, "target": _text(entry["target"])}
    return entry


def _text(function: Any) -> str:
    """The target that names a function, or a text that says there is none."""
    return _target(function) or f"{PYTHON_OBJECT}: {_name(function)}>"


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _target(function: Any) -> str | None:
    """`package.module:function`, if that names this very function in every process."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not callable(function) or module in (None, "__main__"):
        return None
    target = f"{module}:{name}"
    try:
        return target if import_target(target) is function else None
    except RlobjError:
        return None
