"""Training from Python: `train` starts a run, `resume` continues one.

Both take names, which the run's configuration can hold, or Python objects, which it cannot. The
configuration records an object as a text such as `<Python object: list>`, so that a run whose
objects are missing is refused and not trained with something else.

A mistake in names or settings is an error before torch is imported, which takes seconds: modules
that need it are imported where they are used.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlobj.base.errors import Argument, ConfigError, RunError, Setting
from rlobj.base.paths import located, located_target, path_of, step_of
from rlobj.base.targets import PYTHON_OBJECT, importable, is_object_text
from rlobj.data import load_problems
from rlobj.data.benchmarks import BENCHMARKS
from rlobj.data.sources import NAMED_SOURCES
from rlobj.data.tasks import TASKS
from rlobj.models.location import require_inputs
from rlobj.models.score_sources import check_prompts, resolved_score
from rlobj.objectives.objective import Objective
from rlobj.runs.checkpoints import checkpoints, named_checkpoint
from rlobj.runs.configuration import dump_config, read_settings
from rlobj.runs.layout import how_to_continue, in_another_trainer, is_run
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.building import build_config
from rlobj.settings.layers import Layer, file_layer, flattened, layers_of, merged, nested, origins
from rlobj.settings.presets import difference, load_preset, preset_names, read_yaml
from rlobj.settings.resuming import changed, refuse_changes
from rlobj.settings.run_config import PLAIN, RunConfig, settings_of
from rlobj.settings.scores import is_template
from rlobj.settings.starting import refuse_unknown_accuracy
from rlobj.settings.training import learning_rate
from rlobj.settings.trust import named_code, trusted
from rlobj.training.loop.callbacks import Callback

if TYPE_CHECKING:
    from rlobj.training.loop.inputs import CallerInputs
    from rlobj.training.loop.result import TrainingResult

logger = logging.getLogger(__name__)

_OF_PRESETS = ("objective", "scores", "columns")
"""Sections that a preset replaces in the settings of a run that a new one starts from."""
_PRESET_KEYS = ("base", "paper", "summary")


def train(
    objective: str | Path | Objective | RunConfig | None = None,
    *,
    from_run: str | Path | None = None,
    model: Any = None,
    tokenizer: Any = None,
    data: Any = None,
    eval_on: Any = None,
    reward: Any = None,
    sampler: Any = None,
    environment: Any = None,
    tools: str | Sequence[str | Callable[..., Any]] | None = None,
    out: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    processes: int | None = None,
    trust: bool = False,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> TrainingResult:
    """Train a policy with a published objective, or one of yours.

    Settings are taken in this order, later over earlier: library defaults, preset, embedded profile
    (only without a model), configuration file or `RunConfig`, the named arguments, `settings`.

    Args:
        objective: a preset's name, such as "stapo"; an `Objective`; a `RunConfig`; or a YAML file:
            a preset (with `base`, `paper` or `summary`) or a configuration as for `--config`. With
            `from_run`, a preset's name, or None for the objective of that run.
        from_run: a run, or "RUN@STEP" or "RUN@best": a new run with its settings, below all that is
            given here, starts from the policy of that checkpoint.
        model: folder or hub id; or a transformers model with float32 weights, which is trained in
            place and needs `tokenizer`. Default: the embedded policy, which learns a built-in task
            or problems of digits and + - * , = only.
        tokenizer: of a model object.
        data: training problems: built-in task, named data set, file, folder or hub id; a list of
            them, such as `[{"source": "a.jsonl", "weight": 2}, "b.jsonl"]`; or an iterable of
            dicts with a question and an answer, such as `{"prompt": "1+2=", "answer": "3"}`.
            Default without a model: `scratchpad`.
        eval_on: held-out problems, in the same forms, or a benchmark. Default: the test part of
            `data`.
        reward: a kind, such as "math" or "exact"; "file.py:function" or "package.module:function";
            a mapping with `kind`; or a function `f(response, answer, **columns)` that returns a
            number or None for undecided, or a mapping that also says whether the response is right:
            `{"reward": 0.2, "correct": False}`. `columns` are the other columns of the row.
        sampler: "transformers", "vllm", "vllm-server", or a `Sampler` object.
        environment: who answers the policy in conversations of several turns: "calculator",
            "file.py:Class", or a class (or function) that makes an `Environment`.
        tools: what the policy may call: "calculator", "python", "file.py:function", or functions
            with type hints and a docstring. Functions run in threads of this process; named tools
            run in processes of their own.
        out: new folder for the run. Default: runs/NAME-TIME.
        settings: single settings by dotted name.
        processes: train in this many processes on this machine. Python objects stay in this
            process, so they need a program started by torchrun instead.
        trust: import the code that the settings of `from_run` name.
        progress: show the progress on stderr, in the first process: a bar with the newest metrics,
            or on no terminal a line now and then.
        callbacks: receive the events of the run.

    Returns:
        The run's metrics, folder and trained model.

    Raises:
        ConfigError: the input was wrong; nothing was written.
        RunError: the work failed; `resume` continues from the last checkpoint.

    Example:
        >>> import rlobj
        >>> problems = [{"prompt": f"{a}+{b}=", "answer": str(a + b)}
        ...             for a in range(5) for b in range(5)]
        >>> def close(response, answer, **columns):
        ...     return 1.0 if response == answer else 0.1 * (response[:1] == answer[:1])
        >>> result = rlobj.train("stapo", data=problems, reward=close,
        ...                      settings={"training.steps": 2})
        >>> result.history[-1]["step"], 0 <= result.history[-1]["reward/mean"] <= 1
        (2, True)
        >>> type(result.model).__name__
        'Qwen3ForCausalLM'
    """
    from rlobj.training.loop.inputs import CallerInputs
    from rlobj.training.loop.running import run_training
    from rlobj.training.progress import followed

    _refuse_wrong_types(out, settings, processes, callbacks, "out")
    inputs = CallerInputs(
        model, tokenizer, data, eval_on, reward, sampler, environment, tools, callbacks
    )
    above = [*inputs.layers(), *_layers(settings)]
    new = open_new(objective, above, out, from_run=from_run, trust=trust)
    if not _launches(processes, inputs):
        with followed(inputs, progress, new.config.training.steps) as inputs:
            return run_training(new.config, new.path, inputs)

    with tempfile.TemporaryDirectory(prefix="rlobj-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(dump_config(new.config), encoding="utf-8")
        words = ["--config", str(file), "--out", str(new.path)]
        return _launched(words, processes, new.path, progress)


def resume(
    run: Path | str,
    *,
    settings: Mapping[str, Any] | None = None,
    model: Any = None,
    tokenizer: Any = None,
    data: Any = None,
    eval_on: Any = None,
    reward: Any = None,
    sampler: Any = None,
    environment: Any = None,
    tools: str | Sequence[str | Callable[..., Any]] | None = None,
    processes: int | None = None,
    trust: bool = False,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> TrainingResult:
    """Continue a run from its newest checkpoint, under its own configuration.

    A run that was started with Python objects needs the same objects again. Steps after the last
    checkpoint are repeated. If all steps are done, the result is that of the finished run.

    Args:
        run: the run directory.
        settings: settings to change, by dotted name: `training.steps`, settings that do not change
            results (`rlobj.settings.resuming.RESUMABLE_SETTINGS`), and some that do, which the run
            records (`RECORDED_SETTINGS`).
        model: the model object that the run was started with.
        tokenizer: of the model object.
        data: the rows that the run was started with.
        eval_on: the held-out rows that the run was started with.
        reward: the local function that the run was started with.
        sampler: the sampler object that the run was started with; or another engine by its name.
        environment: the class that the run was started with.
        tools: the functions that the run was started with.
        processes: continue in this many processes on this machine.
        trust: import the code that the run's settings name. Without it, only a reward that is
            passed again is imported.
        progress: as in `train`.
        callbacks: receive the events of the run.

    Raises:
        ConfigError: no run there, a setting that would change its results, a missing object, or
            code without `trust`.
        RunError: the work failed; `resume` continues from the last checkpoint.

    Example:
        >>> import rlobj
        >>> run = rlobj.train("grpo", data="max-digits", settings={"training.steps": 1}).path
        >>> result = rlobj.resume(run, settings={"training.steps": 2})
        >>> [line["step"] for line in result.history]
        [1, 2]
    """
    from rlobj.training.loop.inputs import CallerInputs
    from rlobj.training.progress import followed

    if run is None:
        raise ConfigError("run is None; expected the path of a run")
    _refuse_wrong_types(run, settings, processes, callbacks, "run")
    if isinstance(sampler, str):
        settings, sampler = {"sampling.engine": sampler, **(settings or {})}, None
    inputs = CallerInputs(
        model, tokenizer, data, eval_on, reward, sampler, environment, tools, callbacks
    )
    resumed = open_resumed(run, _layers(settings), inputs.layers(), trust=trust)
    steps = resumed.config.training.steps
    if resumed.done < steps and _launches(processes, inputs):
        words = ["--resume", str(run), "--trust"]
        for path, value in (settings or {}).items():
            words += ["--set", f"{path}={json.dumps(value)}"]
        return _launched(words, processes, resumed.run.path, progress)
    with followed(inputs, progress, steps, resumed.done, resumed.run.lines()) as inputs:
        return go_on(resumed, inputs)


class NewRun(NamedTuple):
    """A run that is about to begin. Nothing is written yet.

    Attributes:
        path: its folder.
        config: its configuration, with absolute paths.
        layers: of the configuration, lowest first.
    """

    path: Path
    config: RunConfig
    layers: list[Layer]


def open_new(
    objective: str | Path | Objective | RunConfig | None,
    above: Sequence[Layer] = (),
    out: Path | str | None = None,
    *,
    from_run: str | Path | None = None,
    trust: bool = False,
) -> NewRun:
    """Check a run that is about to begin.

    Args:
        objective: as in `train`, which also lists the errors; None = that of `from_run` or `above`.
        above: what the caller sets: (origin, partial RunConfig), later over earlier.
        out: as in `train`.
        from_run: as in `train`.
        trust: as in `train`.
    """
    if from_run is None:
        layers = _layers_under(above, objective)
        config = build_config(layers)
    else:
        preset = None if objective is None else str(objective)
        layers, config = start_from(from_run, preset, above, trust=trust)
    config = prepared(config)
    return NewRun(new_folder(config, out), config, layers)


class Resumed(NamedTuple):
    """A run that is about to be resumed.

    Attributes:
        path: the run directory, as it was given.
        run: its files.
        config: its configuration, with the changes.
        done: the steps done.
        longer: the changes have a number of steps.
    """

    path: Path
    run: RunFolder
    config: RunConfig
    done: int
    longer: bool


def open_resumed(
    run: Path | str,
    changes: Sequence[Layer] = (),
    again: Sequence[Layer] = (),
    *,
    trust: bool = False,
    refused: Sequence[str] = (),
) -> Resumed:
    """Check a run that is about to be resumed, and all that the caller gives with it.

    Args:
        run: the run directory.
        changes: layers over the run's own configuration.
        again: what the run was started with, by the names of `train`'s arguments.
        trust: as in `resume`, which also lists the errors.
        refused: other options that were given and that no resumed run accepts.
    """
    path = Path(run)
    if in_another_trainer(path):
        how = how_to_continue(path)
        raise ConfigError(f"{run} cannot be resumed here. {how}")
    origin_of, flat = origins(changes), flattened(merged(changes))
    several = {name for name in ("rewards", "rewards.of") if isinstance(flat.get(name), list)}
    names = [f"{origin} {name}" for name, origin in origin_of.items() if name not in several]
    recorded = read_settings(path)  # an error if there is no run
    refuse_changes(run, [*refused, *names])
    _refuse_auto(run, flattened(recorded), flat)
    from_caller = merged([*again, *changes])
    with trusted(run, [("run", recorded), *again, *changes], from_caller, trust):
        stored = settings_of(RunConfig(**recorded))
        config = build_config([("run", stored), *changes])
    if several:  # of which each may have a change
        rewards = config.rewards.seen_from(Path.cwd())
        config = config.model_copy(update={"rewards": rewards})
        refuse_changes(run, changed(stored, settings_of(config)))
    _require_same_objects(run, stored, again, recorded_objects(config))
    from rlobj.runs.checkpoints import newest_sound

    directory = RunFolder(run)
    newest = newest_sound(directory.path)
    steps, done = config.training.steps, step_of(newest) if newest else 0
    if steps < done:
        raise ConfigError(
            Setting("training.steps", steps), f": {run} has {done} steps done already"
        )
    return Resumed(path, directory, config, done, "training.steps" in origin_of)


def _refuse_auto(run: Path | str, stored: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Check that no change is `auto` for a setting that a run has a value of."""
    for name in ("sampling.engine", *PLAIN):
        if changes.get(name) == "auto" != stored.get(name, "auto"):
            raise ConfigError(
                f"{name} is auto, which is chosen once, when a run begins: {run} has "
                f"{stored[name]}. Leave it out, or use ",
                Setting(name, "VALUE"),
            )


def go_on(resumed: Resumed, inputs: CallerInputs) -> TrainingResult:
    """Continue a run. If all steps are done, the result is that of the finished run."""
    from rlobj.training.loop.result import TrainingResult
    from rlobj.training.loop.running import run_training

    path, directory, config, done, longer = resumed
    if done == config.training.steps:
        return TrainingResult(directory.path, done, 0.0, directory.lines())
    if longer:
        _warn_of_more_steps(config, directory.lines()[-1:], done)
    return run_training(config, path, inputs, resume=True)


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
        ConfigError: no such run or checkpoint, a damaged one, another model as well, or code
            without `trust`.
    """
    text = str(origin)
    whole = is_run(path_of(text))  # a folder whose name may have an @
    name, _, step = (text, "", "") if whole else text.rpartition("@")
    path = path_of(name or text).absolute()
    settings = read_settings(path)
    changes = [(layer, dict(values)) for layer, values in above]
    presets = [values.pop("preset", None) for _, values in changes]
    preset = preset or next((named for named in reversed(presets) if named is not None), None)
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
    layer = f"run {path.name}"
    if step or checkpoints(path) or in_another_trainer(path):
        checkpoint = named_checkpoint(path, step or None)
        from rlobj.runs.checkpoints import newest_sound, require_sound

        if step:
            require_sound(checkpoint)
        else:
            checkpoint = newest_sound(path) or checkpoint
        settings["model"] = {**settings["model"], "name": str(checkpoint / "model")}
        settings["origin"] = f"{path}@{step_of(checkpoint)}"
        layer = f"{layer}@{step_of(checkpoint)}"
    _prepare_scores(path, settings, merged(changes))
    layers = [(layer, settings), *changes]
    with trusted(path, layers, merged(changes), trust):
        return layers, build_config(layers)


def _prepare_scores(run: Path, settings: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Check the scores of another run, and leave out the models of those that get another one.

    Raises:
        ConfigError: a prompt of the run is no template: a stranger's run may name any file.
    """
    changed_scores = changes.get("scores") or {}
    scores = settings.get("scores")
    for name, score in scores.items() if isinstance(scores, Mapping) else ():
        if not isinstance(score, dict):
            continue  # an error of this setting, later
        if score.get("prompt") and not is_template(score["prompt"]):
            raise ConfigError(
                f"{run}: scores.{name}.prompt is no template, but {score['prompt']!r}"
            )
        change = changed_scores.get(name)
        if isinstance(change, Mapping) and change.keys() & {"model", "run", "server"}:
            for key in ("model", "run", "checkpoint", "digest", "server"):
                score.pop(key, None)


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
    require_inputs(config)
    scores = {name: resolved_score(name, score) for name, score in config.scores.items()}
    data = {key: _absolute(getattr(config.data, key)) for key in ("source", "test")}
    if isinstance(parts := config.data.source, tuple):
        data["source"] = tuple(
            part.model_copy(update={"source": _absolute(part.source)}) for part in parts
        )
    model = config.model.model_copy(update={"name": _absolute(config.model.name)})
    rewards = config.rewards.seen_from(Path.cwd())
    columns = {name: located_target(value, Path.cwd()) for name, value in config.columns.items()}
    environment = config.environment.seen_from(Path.cwd())
    located = {"data": config.data.model_copy(update=data), "model": model, "rewards": rewards}
    located |= {"scores": scores, "columns": columns, "environment": environment}
    return config.model_copy(update=located)


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
            answers = config.objective.reads_rewards and config.rewards.needs_answers
            grader.check(load_problems(config.data, "train", answers=answers))
            refuse_unknown_accuracy(config, grader.says_right)


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
        return [("config", settings_of(objective)), *above]
    if isinstance(objective, Objective):
        settings = {"objective": settings_of(objective)}
        return layers_of(None, [("objective", settings), *above])
    if not isinstance(objective, str | Path | None):
        raise ConfigError(
            f"the objective is a {type(objective).__name__}; expected a preset's name, an "
            "Objective, a RunConfig, or a YAML file"
        )
    named = None if objective is None else str(objective)
    path = None if named is None or named in preset_names() else path_of(named)
    if path is None or not path.is_file() or read_yaml(path).keys() & _PRESET_KEYS:
        layers = layers_of(named, above)
    else:
        layers = layers_of(None, [file_layer(path), *above])
    if not any("objective" in layer for _, layer in layers):
        raise ConfigError(
            "" if path is None else f"{objective} has ",
            "no objective: name a preset, such as stapo (rlobj presets list shows all), or a "
            "configuration file with preset: NAME or objective: in it",
        )
    return layers


def _refuse_wrong_types(
    folder: Any, settings: Any, processes: Any, callbacks: Any, argument: str
) -> None:
    """Raise ConfigError for an argument of another type than documented."""
    if not isinstance(folder, str | Path | None):
        raise ConfigError(f"{argument} is {folder!r}; expected the path of a folder")
    if settings is not None and not (
        isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings)
    ):
        raise ConfigError(
            f'settings is {settings!r}; expected a dict such as {{"training.steps": 3}}'
        )
    if processes is not None and not (isinstance(processes, int) and processes >= 1):
        raise ConfigError(f"processes is {processes!r}; expected a whole number of at least 1")
    if not isinstance(callbacks, Sequence) or not all(isinstance(c, Callback) for c in callbacks):
        raise ConfigError(f"callbacks is {callbacks!r}; expected a list of rlobj.Callback objects")


def _layers(settings: Mapping[str, Any] | None) -> list[Layer]:
    return [("settings", nested(path, value)) for path, value in (settings or {}).items()]


def _absolute(name: Any) -> Any:
    """The name of a file or folder from the root; any other name as it is."""
    if not isinstance(name, str) or not name or name in {*TASKS, *NAMED_SOURCES, *BENCHMARKS}:
        return name
    return located(name, Path.cwd())


def recorded_objects(config: RunConfig) -> list[str]:
    """The arguments of `rlobj.train` that were objects when the run was started."""
    texts = {"model": config.model.name, "data": config.data.source, "eval_on": config.data.test}
    arguments = [name for name, text in texts.items() if is_object_text(text)]
    if f"'{PYTHON_OBJECT}" in str(config.rewards.recorded()):
        arguments.append("reward")
    if is_object_text(config.environment.target):
        arguments.append("environment")
    if any(map(is_object_text, config.environment.tools)):
        arguments.append("tools")
    return [*arguments, *(["sampler"] if config.sampling.engine == "object" else [])]


def _require_same_objects(
    run: Path | str, stored: Mapping[str, Any], again: Sequence[Layer], needed: Sequence[str]
) -> None:
    """Check that a resumed run gets the objects that it was started with, and no others."""
    missing = [f"{name}=..." for name in needed if name not in dict(again)]
    if missing:
        raise ConfigError(
            f"{run} was started with Python objects, which its configuration cannot name. Pass "
            f"them again: rlobj.resume({str(run)!r}, {', '.join(missing)})"
        )
    for name, layer in again:
        config = prepared(build_config([("run", stored), (name, layer)]))
        for path, before, now in difference(stored, settings_of(config)):
            raise ConfigError(
                f"{run} was started with another {name}: {path} is {before!r}, and would be "
                f"{now!r}. A run is resumed with what it was started with"
            )


def _warn_of_more_steps(config: RunConfig, last: Sequence[Mapping[str, Any]], done: int) -> None:
    """Say that a longer schedule rises again; `last` are the last metrics, after `done` steps."""
    training = config.training
    before = [line.get("train/learning_rate") or math.inf for line in last]
    rises = any(learning_rate(training, done) > rate for rate in before)
    if rises and training.schedule != "constant":
        logger.warning(
            f"training.schedule is {training.schedule} and now covers {training.steps} steps, so "
            "the learning rate increases now and then decreases again"
        )


def _launches(processes: int | None, inputs: CallerInputs) -> bool:
    """Whether other processes do the work.

    Raises:
        ConfigError: something that only this process has.
    """
    if processes is None or processes == 1:
        return False
    local = [*inputs.local(), *(["callbacks"] if inputs.callbacks else [])]
    if local:
        raise ConfigError(
            Argument("processes", processes),
            f" starts new processes, which cannot get the Python objects "
            f"passed as {', '.join(local)}. Start this program with torchrun --nproc-per-node "
            f"{processes} and leave out processes; or pass names: a model's folder or hub id, a "
            "data file, a reward as file.py:function",
        )
    return True


def _launched(
    words: Sequence[str], processes: int | None, out: Path, progress: bool
) -> TrainingResult:
    """Train in new processes, and read what they left."""
    from rlobj.base.launched import PROGRESS
    from rlobj.training.loop.result import TrainingResult
    from rlobj.training.parallel.launcher import launch

    start = time.perf_counter()
    variables = {PROGRESS: "stderr" if progress else "none"}
    code = launch(["train", *words], processes or 1, variables=variables)
    if code:
        kind = ConfigError if code == 2 else RunError
        raise kind(f"training in {processes} processes failed with exit code {code}; see above")
    run = RunFolder(out)
    return TrainingResult(out, run.steps_saved(), time.perf_counter() - start, run.lines())
