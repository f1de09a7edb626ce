"""The model of an evaluation before it is loaded: a hub id, a folder, a run, or an object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.config.embedded_profile import DEFAULT_TASK, OWN_PROBLEMS_TASK, PROFILES
from rlobj.config.layers import Layer
from rlobj.config.run_config import settings_of
from rlobj.config.run_folder import best_checkpoint, checkpoints, is_run, read_run_config, step_of
from rlobj.models.embedded import embedded_policy
from rlobj.models.location import require_model


@dataclass(frozen=True)
class ModelSource:
    """A model that is not loaded yet, or a transformers model in memory.

    Attributes:
        name: for people and files.
        layer: the settings that come with the model.
        locate: finds or makes its folder, or gives the hub id or the model in memory; it calls its
            argument with (step, steps, loss) of a supervised start.
        tokenizer: of a model in memory.
    """

    name: str
    layer: Layer
    locate: Callable[[Callable[[int, int, float], None]], Any]
    tokenizer: Any = None


def find_model(
    model: Any,
    tokenizer: Any = None,
    asked: Sequence[Any] | None = None,
    checkpoint: str | None = None,
) -> ModelSource:
    """Find a model and the settings that come with it, without loading it.

    Args:
        model: as given to `evaluate`.
        tokenizer: of a model object.
        asked: the problems, None = those of the model. The embedded policy is that of the first
            task among them; without a task, it is the one that reads a user's own problems.
        checkpoint: of a run, as given to `evaluate`.

    Raises:
        ConfigError: no such model, or no such checkpoint.
    """
    run = isinstance(model, str | Path) and is_run(Path(model).expanduser())
    if checkpoint is not None and not run:
        raise ConfigError(f"checkpoint={checkpoint} needs a run, and the model is {model}")
    if not isinstance(model, str | Path):
        if tokenizer is None:
            raise ConfigError(
                f"model is a {type(model).__name__} object: pass its tokenizer as well, as "
                "tokenizer=..."
            )
        name = getattr(model.config, "name_or_path", "") or type(model).__name__
        return ModelSource(name, ("model", {"model": {"name": name}}), lambda _: model, tokenizer)
    if tokenizer is not None:
        raise ConfigError("tokenizer= is for a model object; a folder or hub id has its own")
    name, path = str(model), Path(model).expanduser()
    if name == "embedded":
        return _embedded([DEFAULT_TASK] if asked is None else asked)
    if run:
        return _of_run(name, path, checkpoint)
    require_model(name)
    return ModelSource(name, ("MODEL", {"model": {"name": name}}), lambda _: name)


def _embedded(asked: Sequence[Any]) -> ModelSource:
    tasks = (each for each in asked if isinstance(each, str) and each in PROFILES)
    task = next(tasks, OWN_PROBLEMS_TASK)
    return ModelSource(
        "embedded",
        ("embedded", PROFILES[task]),
        lambda progress: str(embedded_policy(task, progress=progress)),
    )


def _of_run(name: str, path: Path, checkpoint: str | None) -> ModelSource:
    """A run's settings, and the model of one of its checkpoints."""
    config, saved = read_run_config(path), checkpoints(path)
    if not saved:
        raise ConfigError(f"{path} has no checkpoint yet. Continue it: rlobj train --resume {path}")
    known = {str(step_of(each)): each for each in saved} | {"newest": saved[-1]}
    if best := best_checkpoint(path):
        known["best"] = best
    chosen = known.get(checkpoint or "newest")
    if chosen is None:
        none = " (no checkpoint was evaluated)" if checkpoint == "best" else ""
        raise ConfigError(
            f"{path} has no checkpoint {checkpoint}{none}; expected one of {', '.join(known)}"
        )
    stored = settings_of(config)
    stored["sampling"] = {**stored["sampling"], "engine": "transformers", "async_depth": 0}
    return ModelSource(name, (str(path), stored), lambda _: str(chosen / "model"))
