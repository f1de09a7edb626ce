"""Open a new run: its layers, its configuration and its folder. Nothing is written.

A mistake in names or settings is an error before torch is imported, which takes seconds: modules
that need it are imported where they are used.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from rlobj.base.errors import Argument, ConfigError, Message, Setting, reported
from rlobj.base.launched import started_processes
from rlobj.base.paths import located, located_target, path_of, step_of
from rlobj.base.targets import importable, object_text, require_file
from rlobj.data.benchmarks import BENCHMARKS
from rlobj.data.sources import NAMED_SOURCES, check_columns, require_source, source_names
from rlobj.data.tasks import TASKS
from rlobj.models.location import gguf_digest, require_model
from rlobj.models.score_sources import resolved_score
from rlobj.objectives.objective import Objective
from rlobj.runs.checkpoints import checkpoints, named_checkpoint, newest_sound, require_sound
from rlobj.runs.configuration import read_settings
from rlobj.runs.layout import in_another_trainer, is_run
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.building import build_config
from rlobj.settings.layers import Layer, file_layer, flattened, layers_of, merged
from rlobj.settings.presets import load_preset, preset_names, read_yaml
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.scores import RoutedConfig, is_template, single_scores
from rlobj.settings.starting import refuse_senseless, refuse_unknown_accuracy
from rlobj.settings.trust import named_code, trusted_config
from rlobj.training.loop.inputs import SETTING_OF
from rlobj.training.resolving import ResolvedRun, RunRequest

_OF_PRESETS = ("objective", "scores", "columns")
"""Sections that a preset replaces in the settings of a run that a new one starts from."""
_PRESET_KEYS = ("base", "paper", "summary")


def open_new(
    objective: str | Path | Objective | RunConfig | None,
    above: Sequence[Layer] = (),
    out: Path | str | None = None,
    *,
    from_run: str | Path | None = None,
    trust: bool = False,
    processes: int | None = None,
) -> RunRequest:
    """Check a run that is about to begin.

    Args:
        objective: as in `train`, which also lists the errors; None = that of `from_run` or `above`.
        above: what the caller sets: (origin, partial RunConfig), later over earlier.
        out: as in `train`.
        from_run: as in `train`.
        trust: as in `train`.
        processes: as in `train`.
    """
    if from_run is None:
        layers = _layers_under(above, objective)
        config = build_config(layers)
    else:
        preset = None if objective is None else str(objective)
        layers, config = start_from(from_run, preset, above, trust=trust)
    config = prepared(config)
    from rlobj.models.checking import check_model  # which imports transformers

    check_model(config)
    return RunRequest(config, new_folder(config, out), layers, processes or started_processes())


def start_from(
    origin: str | Path, preset: str | None, above: Sequence[Layer], *, trust: bool
) -> tuple[list[Layer], RunConfig]:
    """The layers of a new run with the settings and the policy of another one, and all together.

    Args:
        origin: `RUN`, its newest checkpoint, or its own model before the first one; `RUN@STEP`, or
            `RUN@best`.
        preset: whose objective replaces the run's; None = the one of `above`, if any.
        above: what the caller sets: (origin, partial RunConfig), later over earlier.
        trust: import the code that the run's settings name.

    Raises:
        ConfigError: no such run or checkpoint, a damaged one, another model as well, code without
            `trust`, or a run of Python objects that are not passed again.
    """
    text = str(origin)
    whole = "@" not in text or is_run(path_of(text))  # a folder may have an @ in its name
    name, _, step = (text, "", "") if whole else text.rpartition("@")
    path = path_of(name).absolute()
    settings = {**read_settings(path), "objects": {}}
    changes = [(layer, dict(values)) for layer, values in above]
    presets = [values.pop("preset", None) for _, values in changes]
    preset = preset or next(filter(None, reversed(presets)), None)
    if model := flattened(merged(changes)).get("model.name"):
        raise ConfigError(
            Argument("from_run", text), f" and the model {model} both name a policy: give one"
        )
    if preset is not None:
        recipe = load_preset(preset).config
        sections = {name: dict(recipe[name]) for name in _OF_PRESETS if name in recipe}
        changes = [(f"preset {preset}", {"preset": preset, **sections}), *changes]
        for name in _OF_PRESETS:
            settings.pop(name, None)
    if step or checkpoints(path) or in_another_trainer(path):
        checkpoint = named_checkpoint(path, step or None)
        if step:
            require_sound(checkpoint)
        else:
            checkpoint = newest_sound(path) or checkpoint
        settings["model"] = {**settings["model"], "name": str(checkpoint / "model")}
        settings["origin"] = f"{path}@{step_of(checkpoint)}"
    _prepare_scores(path, settings.get("scores"), merged(changes).get("scores") or {}, "scores")
    layers = [(f"run {path.name}", settings), *changes]
    config = trusted_config(path, layers, merged(changes), trust)
    _require_objects(path, config)
    return layers, config


def _require_objects(run: Path, config: RunConfig) -> None:
    """Check that no setting of another run is the record of an object that nobody passes again."""
    record = object_text("").rstrip(" >")
    held = [path for path, value in flattened(settings_of(config)).items() if record in str(value)]
    missing = [
        Argument(name, "...")
        for name, setting in SETTING_OF.items()
        if name not in {*config.objects, "model"} and any(map(setting.startswith, held))
    ]
    if missing:
        again = Message.joined(", ", missing)
        raise ConfigError(f"{run} was made from Python objects. Pass them again: ", again)


def _prepare_scores(run: Path, scores: Any, changes: Mapping[str, Any], above: str) -> None:
    """Check the scores of another run, and leave out the models of those that get another one.

    Args:
        run: the other run.
        scores: the section of its settings.
        changes: of this section.
        above: name of the section.

    Raises:
        ConfigError: a prompt of the run is no template: a stranger's run may name any file.
    """
    for name, score in scores.items() if isinstance(scores, Mapping) else ():
        if not isinstance(score, dict):
            continue  # an error of this setting, later
        if score.get("prompt") and not is_template(score["prompt"]):
            raise ConfigError(
                f"{run}: {above}.{name}.prompt is no template, but {score['prompt']!r}"
            )
        change = changes.get(name)
        change = change if isinstance(change, Mapping) else {}
        single = bool(change.keys() & {"model", "run", "server"})
        left_out = ["model", "run", "checkpoint", "digest", "server"] + ["by", "models"] * single
        for key in left_out if single or change.keys() & {"by", "models"} else ():
            score.pop(key, None)
        _prepare_scores(
            run, score.get("models"), change.get("models") or {}, f"{above}.{name}.models"
        )


def new_folder(config: RunConfig, out: Path | str | None = None) -> Path:
    """The folder of a new run: `out`, or `runs/PRESET-TIME` with a number behind it if that exists.

    Raises:
        ConfigError: it has a run already.
    """
    if out is not None:
        if is_run(path_of(out)):
            RunFolder(out).refuse_if_taken()
        return Path(out)
    name = Path(config.preset).stem if config.preset else "run"
    folder = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    numbered = (folder.with_name(f"{folder.name}-{i}") for i in count(2))
    return next(path for path in chain([folder], numbered) if not path.exists())


def _layers_under(above: Sequence[Layer], objective: Any) -> list[Layer]:
    """The layers of `train`'s first argument, under those of the others."""
    if isinstance(objective, RunConfig):
        return [("config", {**settings_of(objective), "objects": {}}), *above]
    if isinstance(objective, Objective):
        return layers_of(None, [("objective", {"objective": settings_of(objective)}), *above])
    named = None if objective is None else str(objective)
    path = None if named is None or named in preset_names() else path_of(named)
    if path is None or not path.is_file() or read_yaml(path).keys() & _PRESET_KEYS:
        layers = layers_of(named, above)
    else:
        layers = layers_of(None, [file_layer(path), *above])
    if not any("objective" in layer for _, layer in layers):
        raise ConfigError("no objective: name a preset, such as stapo (rlobj presets list)")
    return layers


def prepared(config: RunConfig) -> RunConfig:
    """The configuration with absolute paths, so that the run can be resumed from any folder.

    Raises:
        ConfigError: no such model; or an objective that needs columns or more responses.
        DataError: a source of problems is no known name, no path and no hub id.
    """
    for name in {*config.objective.columns} - config.columns.keys():
        source = Setting(f"columns.{name}", "data")
        raise ConfigError(f"nothing says where the column '{name}' comes from: use ", source)
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
    scores = single_scores(config.scores).items()
    models = [(f"scores.{name}.model", score.model) for name, score in scores]
    models += [] if "model" in config.objects else [("model.name", config.model.name)]
    models += [("rewards.model", name) for name in config.rewards.models]
    for setting, name in models:
        if name not in (None, "policy"):
            with reported(ConfigError, setting, ConfigError):
                require_model(name)
    for argument, source in {"data": config.data.source, "eval_on": config.data.test}.items():
        for name in () if argument in config.objects else source_names(source):
            require_source(name)
    check_columns(config.data, answers=config.needs_answers)
    settings = settings_of(config)
    if named_code({"objective": settings["objective"]}):
        from rlobj.objectives.trials import require_trainable

        require_trainable(config.resolved_objective(), "objective")
    sections = ("rewards", "columns", "environment")
    for target in named_code({name: settings[name] for name in sections}):
        if ".py:" in target:
            require_file(target)


def _absolute(name: Any) -> Any:
    """The name of a file or folder from the root; any other name as it is."""
    if not isinstance(name, str) or not name or name in {*TASKS, *NAMED_SOURCES, *BENCHMARKS}:
        return name
    return located(name, Path.cwd())


def check_functions(run: ResolvedRun) -> None:
    """Check the functions, columns, teachers and prompts of a run, as its start does.

    Functions that may not be imported here are left out.

    Raises:
        ConfigError: a function cannot be imported or cannot grade the first problem, or it gives no
            accuracy and dynamic sampling compares accuracies; there is no such environment or tool;
            or a problem names none of a score's models.
        DataError: the problems cannot be read, or have no number as a column of one's own.
    """
    config, inputs = run.config, run.inputs
    settings = settings_of(config)

    def checked(section: str) -> bool:
        return all(map(importable, named_code({section: settings[section]})))

    for name in config.objective.read_scores & config.scores.keys():
        if isinstance(score := config.scores[name], RoutedConfig):
            for problem in run.problems.train:
                score.chosen(name, problem)
    if config.environment.active and checked("environment"):
        from rlobj.conversations.opening import check_named  # which imports torch

        check_named(config.environment, inputs.passed("environment"), inputs.tools)
    if config.columns and checked("columns"):
        from rlobj.training.rollouts.own_columns import OwnColumns

        with OwnColumns(config) as columns:
            columns.check(run.problems.train)
    if (config.rewards.targets or config.rewards.models) and checked("rewards"):
        with inputs.grader(config, run.problems.train) as grader:
            grader.check(run.problems.train)
            refuse_unknown_accuracy(config, grader.says_right)
