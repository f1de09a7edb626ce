"""Training from Python: `train` starts a run, `resume` continues one.

Both take names, which the run's configuration can hold, or Python objects, which it cannot. The
configuration records an object as a text such as `<Python object: list>`, so that a run whose
objects are missing is refused and not trained with something else.

A mistake in names or settings is an error before torch is imported, which takes seconds: modules
that need it are imported where they are used.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlobj.base.errors import Argument, ConfigError, RunError
from rlobj.objectives.objective import Objective
from rlobj.runs.configuration import dump_config
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.layers import Layer, nested
from rlobj.settings.run_config import RunConfig
from rlobj.training.loop.callbacks import Callback
from rlobj.training.new_run import open_new
from rlobj.training.resumed_run import Resumed, open_resumed, warn_of_more_steps

if TYPE_CHECKING:
    from rlobj.training.loop.inputs import CallerInputs
    from rlobj.training.loop.result import TrainingResult


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
    objects = (model, tokenizer, data, eval_on, reward, sampler, environment, tools)
    inputs = CallerInputs(*objects, callbacks=callbacks)
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
    objects = (model, tokenizer, data, eval_on, reward, sampler, environment, tools)
    inputs = CallerInputs(*objects, callbacks=callbacks)
    found = open_resumed(run, _layers(settings), inputs.layers(), trust=trust)
    if found.done < found.config.training.steps and _launches(processes, inputs):
        words = ["--resume", str(run), "--trust"]
        for path, value in (settings or {}).items():
            words += ["--set", f"{path}={json.dumps(value)}"]
        return _launched(words, processes, found.run.path, progress)
    steps, history = found.config.training.steps, found.run.lines()
    with followed(inputs, progress, steps, found.done, history) as inputs:
        return go_on(found, inputs)


def go_on(found: Resumed, inputs: CallerInputs) -> TrainingResult:
    """Continue a run. If all steps are done, the result is that of the finished run."""
    from rlobj.training.loop.result import TrainingResult
    from rlobj.training.loop.running import run_training

    path, directory, config, done, longer = found
    if done == config.training.steps:
        return TrainingResult(directory.path, done, 0.0, directory.lines())
    if longer:
        warn_of_more_steps(config, directory.lines()[-1:], done)
    return run_training(config, path, inputs, resume=True)


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
