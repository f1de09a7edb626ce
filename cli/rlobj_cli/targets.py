"""What `rlobj eval` was asked for: a policy, and problems with the settings to put them to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj.composition import Layer
from rlobj.config import RunConfig, build_config
from rlobj.data import Problem, load_problems
from rlobj.data.tasks import TASKS
from rlobj.errors import ConfigError, nearest
from rlobj.samplers import SamplingSettings
from rlobj.training import RunDirectory

__all__ = ["Benchmark", "Target", "find_target"]

Options = Mapping[str, tuple[str, Any]]
"""Option -> (dotted path in RunConfig, value)."""

Locate = Callable[[Callable[[int, int, float], None]], str]
"""Finds or makes the model folder, or names the hub id; told (done, total, loss) meanwhile."""


@dataclass(frozen=True)
class Benchmark:
    """Problems, and how they are asked and graded."""

    name: str
    config: RunConfig
    problems: list[Problem]

    @property
    def settings(self) -> SamplingSettings:
        """How responses are drawn."""
        evaluation = self.config.evaluation
        return self.config.sampling.settings(
            temperature=evaluation.temperature, top_p=evaluation.top_p, top_k=0, min_p=0.0
        )


@dataclass(frozen=True)
class Target:
    """A policy and its benchmarks.

    Attributes:
        name: what the user called it.
        locate: finds or makes the model.
        benchmarks: at least one.
    """

    name: str
    locate: Locate
    benchmarks: list[Benchmark]


def find_target(model: str, on: str | None, options: Options) -> Target:
    """The policy and the problems, all read and checked before anything is sampled.

    Args:
        model: run directory, model folder, hub id, or "embedded".
        on: tasks, files, folders or hub ids, separated by commas; None = the run's own.
        options: over what the run or the defaults say.

    Raises:
        ConfigError: no such policy, or settings that cannot be.
        DataError: problems that cannot be read.
    """
    names: list[str | None] = [None] if on is None else [*_split(on)]
    path = Path(model).expanduser()
    if model == "embedded":
        below, locate = _embedded(names)
    elif (path / "config.resolved.yaml").is_file():
        below, locate = _run(path)
    else:
        _refuse_missing_folder(model, path)
        below, locate = ("MODEL", {"model": {"name": model}}), lambda _: model
    return Target(model, locate, [_benchmark(name, below, options) for name in names])


def _embedded(names: Sequence[str | None]) -> tuple[Layer, Locate]:
    """The embedded policy of the first task asked for that has one; else the default."""
    from rlobj.embedded import EMBEDDED_PROFILE, PROFILES, embedded_policy

    profile = next((PROFILES[name] for name in names if name in PROFILES), EMBEDDED_PROFILE)
    task = profile["data"]["source"]
    return ("embedded", profile), lambda told: str(embedded_policy(task, progress=told))


def _run(path: Path) -> tuple[Layer, Locate]:
    """A run's settings, and the model of its newest checkpoint."""
    run, config = RunDirectory.open(path)
    newest = run.latest()
    if newest is None:
        raise ConfigError(f"{path} has no checkpoint yet. Continue it: rlobj train --resume {path}")
    stored = config.model_dump(mode="json", by_alias=True)
    return (str(path), stored), lambda _: str(newest / "model")


def _refuse_missing_folder(model: str, path: Path) -> None:
    """A path into a folder that exists is no hub id.

    Raises:
        ConfigError: nothing there, with the nearest name beside it.
    """
    local = model.startswith((".", "~", "/")) or len(path.parts) > 2
    beside = path.parent if len(path.parts) > 1 else None
    if path.is_dir() or not (local or (beside is not None and beside.is_dir())):
        return
    siblings = [str(x) for x in path.parent.iterdir()] if path.parent.is_dir() else []
    advice = nearest(model, siblings, spell_out=False)
    raise ConfigError(f"there is no run or model folder '{model}'.{advice}")


def _benchmark(name: str | None, below: Layer, options: Options) -> Benchmark:
    layers = [below]
    if name is not None:
        columns = {"prompt": None, "answer": None, "id": None}
        data: dict[str, Any] = {"source": name, "split": "test", "columns": columns}
        data |= {"name": None, "test": None, "test_fraction": 0.0}
        layer: dict[str, Any] = {"data": data}
        if name in TASKS:
            data["template"] = None
            layer["rewards"] = {"kind": "exact"}
        layers.append(("--on", layer))
    elif "data" not in below[1]:
        raise ConfigError(
            f"name the problems: --on {','.join(TASKS)}, or a file. Only a run brings its own."
        )
    for option, (place, value) in options.items():
        layers.append((option, _nested(place, value)))
    config = build_config(layers)
    if name is None:
        source = config.data.test or config.data.source
        return Benchmark(f"{source} (held out)", config, load_problems(config.data, "test"))
    # With `split: test`, "train" is the source's test part, or all of a source without parts.
    return Benchmark(name, config, load_problems(config.data, "train"))


def _nested(place: str, value: Any) -> dict[str, Any]:
    head, _, rest = place.partition(".")
    return {head: _nested(rest, value) if rest else value}


def _split(on: str) -> list[str]:
    """Names between commas; a path may hold commas itself."""
    if Path(on).exists():
        return [on]
    return [name for name in (part.strip() for part in on.split(",")) if name]
