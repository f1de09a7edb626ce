"""Check a configuration as the start of its run does, and write its paths in full."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, Setting, reported
from rlobj.base.paths import located, located_target, path_of
from rlobj.base.targets import importable, require_file
from rlobj.data import load_problems
from rlobj.data.benchmarks import BENCHMARKS
from rlobj.data.sources import NAMED_SOURCES, check_columns, require_source, source_names
from rlobj.data.tasks import TASKS
from rlobj.models.location import gguf_digest, is_gguf, require_model
from rlobj.models.score_sources import check_prompts, resolved_score
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.starting import refuse_senseless, refuse_unknown_accuracy
from rlobj.settings.trust import named_code


def prepared(config: RunConfig) -> RunConfig:
    """The configuration with absolute paths, so that the run can be resumed from any folder.

    Raises:
        ConfigError: no such model; or an objective that needs columns or more responses.
        DataError: a source of problems is no known name, no path and no hub id.
    """
    for name in {*config.objective.columns} - config.columns.keys():
        raise ConfigError(
            f"objective.columns: {name}: nothing says where this column of your own comes from. "
            "Use ",
            Setting(f"columns.{name}", "data"),
            ", reward, or FILE.py:FUNCTION",
        )
    if config.columns:
        from rlobj.runs.columns import refuse_recorded

        refuse_recorded(config.columns)
    _require_inputs(config)
    scores = {name: resolved_score(name, score) for name, score in config.scores.items()}
    data = {key: _absolute(getattr(config.data, key)) for key in ("source", "test")}
    if isinstance(parts := config.data.source, tuple):
        data["source"] = tuple(
            part.model_copy(update={"source": _absolute(part.source)}) for part in parts
        )
    named = {"name": _absolute(config.model.name), "digest": gguf_digest(config.model)}
    model = config.model.model_copy(update=named)
    rewards = config.rewards.seen_from(Path.cwd())
    columns = {name: located_target(value, Path.cwd()) for name, value in config.columns.items()}
    environment = config.environment.seen_from(Path.cwd())
    located = {"data": config.data.model_copy(update=data), "model": model, "rewards": rewards}
    located |= {"scores": scores, "columns": columns, "environment": environment}
    return config.model_copy(update=located)


def _require_inputs(config: RunConfig) -> None:
    """Check what a run is about to learn from, without loading a model or problems.

    Raises:
        ConfigError: as `refuse_senseless` and `require_model`.
        DataError: as `require_source` and `check_columns`.
    """
    refuse_senseless(config)
    models = [(f"scores.{name}.model", score.model) for name, score in config.scores.items()]
    models += [("model.name", config.model.name)]
    models += [("rewards.model", name) for name in config.rewards.models]
    for setting, name in models:
        if name not in (None, "policy"):
            with reported(ConfigError, setting, ConfigError):
                require_model(name)
                if setting == "rewards.model" and is_gguf(path_of(name)):
                    raise ConfigError(f"{name} is a GGUF file; expected a folder or a hub id")
    for source in (*source_names(config.data.source), *source_names(config.data.test)):
        require_source(source)
    check_columns(config.data, answers=config.needs_answers)
    settings = settings_of(config)
    if named_code({"objective": settings["objective"]}):
        from rlobj.objectives.trials import require_sound

        require_sound(config.resolved_objective(), "objective")
    sections = ("rewards", "columns", "environment")
    for target in named_code({name: settings[name] for name in sections}):
        if ".py:" in target:
            require_file(target)


def _absolute(name: Any) -> Any:
    """The name of a file or folder from the root; any other name as it is."""
    if not isinstance(name, str) or not name or name in {*TASKS, *NAMED_SOURCES, *BENCHMARKS}:
        return name
    return located(name, Path.cwd())


def check_functions(config: RunConfig) -> None:
    """Check the functions, columns and prompts of a configuration, as the start of its run does.

    Functions that may not be imported here are left out.

    Raises:
        ConfigError: a function cannot be imported or cannot grade the first problem, or it gives no
            accuracy and dynamic sampling compares accuracies; there is no such environment or tool;
            as `check_prompts`.
        DataError: the problems cannot be read, or have no number as a column of one's own.
    """
    settings = settings_of(config)

    def checked(section: str) -> bool:
        return all(map(importable, named_code({section: settings[section]})))

    check_prompts(config)
    if config.environment.active and checked("environment"):
        from rlobj.conversations.opening import check_named  # which imports torch

        check_named(config.environment)
    if config.columns and checked("columns"):
        from rlobj.training.rollouts.own_columns import OwnColumns

        OwnColumns(config).check(load_problems(config.data, "train"))
    if (config.rewards.targets or config.rewards.models) and checked("rewards"):
        with closing(config.rewards.open()) as grader:
            grader.check(load_problems(config.data, "train", answers=config.needs_answers))
            refuse_unknown_accuracy(config, grader.says_right)
