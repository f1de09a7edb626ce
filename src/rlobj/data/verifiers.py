"""Environments of verifiers: `verifiers:NAME`, an installed package, or `verifiers:FILE.toml`.

To load one executes its code.
"""

# pyright: reportMissingImports=false

import functools
import tomllib
from itertools import islice
from typing import Any

from rlobj.base.errors import ConfigError, MissingExtra, reported
from rlobj.base.paths import path_of
from rlobj.base.targets import trusted_target
from rlobj.data.problems import Problem

PREFIX = "verifiers:"
_MOST = 100_000
"""Tasks that are read: a taskset may be infinite."""


def is_verifiers(name: Any) -> bool:
    """Whether a setting names an environment of verifiers."""
    return isinstance(name, str) and name.startswith(PREFIX)


def is_environment(value: Any) -> bool:
    """Whether an object is an environment of verifiers."""
    return any(base.__module__.startswith("verifiers.") for base in type(value).__mro__)


@functools.cache
def load_environment(name: str) -> Any:
    """The environment of a name; a file has the `[env]` table of verifiers' programs.

    Raises:
        MissingExtra: verifiers is not installed.
        ConfigError: there is no such environment, it cannot be loaded, or it may not be.
    """
    trusted_target(name)
    try:
        import verifiers.v1 as verifiers
    except ImportError:
        raise MissingExtra("verifiers", "verifiers", name) from None
    named = name.removeprefix(PREFIX)
    with reported(ConfigError, name, Exception):
        settings: Any = {"taskset": {"id": named}}
        if named.endswith(".toml"):
            settings = tomllib.loads(path_of(named).read_text(encoding="utf-8"))["env"]
        return verifiers.load_environment(verifiers.resolve_env_config(settings))


def tasks_of(environment: Any) -> dict[str, Any]:
    """The tasks of an environment, by their keys."""
    return {task.key: task for task in islice(environment.taskset, _MOST)}


def verifiers_problems(environment: Any) -> list[Problem]:
    """A problem for each task of an environment; `extra["verifiers"]` is the key of the task.

    The prompt is the task's, or its name, with its number: tasks may have equal ones.
    """
    return [
        Problem(
            id=key,
            prompt=f"{task.data.prompt_text or task.data.name or 'task'} [{task.data.idx}]",
            answer="",
            extra={"verifiers": key},
        )
        for key, task in tasks_of(environment).items()
    ]
