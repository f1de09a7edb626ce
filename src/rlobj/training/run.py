"""Training from Python: `train` starts a run, `resume` continues one.

Both take names, which the run's configuration can hold, or Python objects, which it cannot. The
configuration records which arguments were objects, so that a run whose objects are missing is
refused and not trained with something else.

A mistake in names or settings is an error before torch is imported, which takes seconds: modules
that need it are imported where they are used.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlobj.base.errors import Argument, BatchError, ConfigError, RunError
from rlobj.base.paths import located_target
from rlobj.base.targets import without_imports
from rlobj.conversations.environment import NoRoom
from rlobj.objectives.objective import Objective
from rlobj.runs.configuration import dump_config
from rlobj.runs.layout import is_run
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.layers import Layer, file_layer, flattened, given_layers, merged, nested
from rlobj.settings.run_config import RunConfig
from rlobj.settings.starting import require_extras
from rlobj.settings.trust import named_code
from rlobj.training.loop.callbacks import Callback
from rlobj.training.loop.inputs import CallerInputs
from rlobj.training.loop.result import TrainingResult
from rlobj.training.new_run import check_functions, open_new
from rlobj.training.parallel.launcher import launch
from rlobj.training.resolving import Hardware, ResolvedRun, RunRequest, resolve
from rlobj.training.resumed_run import how_to_go_on, open_resumed

if TYPE_CHECKING:
    from rlobj.training.progress import RunScreen


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
    config: Path | str | None = None,
    settings: Mapping[str, Any] | Sequence[Layer] | None = None,
    processes: int | None = None,
    trust: bool = False,
    dry_run: bool = False,
    progress: bool | RunScreen = True,
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
        model: folder, GGUF file or hub id; or a transformers model with float32 weights, which is
            trained in place and needs `tokenizer`. Default: the embedded policy, which learns a
            built-in task or problems of digits and + - * , = only.
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
        config: a YAML file with settings above those of the objective.
        settings: single settings by dotted name.
        processes: train in this many processes on this machine. Python objects stay in this
            process, so they need a program started by torchrun instead.
        trust: import the code that the settings of `from_run` name.
        dry_run: check the run and tell the callbacks its settings with `opened`, and no more. The
            result has no step. Of code, only what the arguments name is imported.
        progress: show the progress on stderr, in the first process: a bar with the newest metrics,
            or on no terminal a line now and then. Or a screen of `rlobj.training.progress`.
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
    from rlobj.training.progress import shown

    inputs = CallerInputs(
        model, tokenizer, data, eval_on, reward, sampler, environment, tools, callbacks
    )
    named = [*inputs.layers(), *given_layers(settings)]
    above = [*([] if config is None else [file_layer(config)]), *named]
    with shown(progress) as screen:
        if not dry_run:
            request = open_new(
                objective, above, out, from_run=from_run, trust=trust, processes=processes
            )
            return _train(request, inputs, processes, screen)
        code = named_code(merged(named))  # what the caller names himself
        targets = [*code, *(located_target(target, Path.cwd()) for target in code)]
        with without_imports(targets):
            request = open_new(
                objective, above, from_run=from_run, trust=trust, processes=processes
            )
            hardware = Hardware.of_this_machine(request.processes)
            run = resolve(request, hardware, inputs, here=True)
            check_functions(run)
            _open(run, _listeners(inputs, screen))
    return TrainingResult(request.path, 0, 0.0, [])


def resume(
    run: Path | str,
    *,
    settings: Mapping[str, Any] | Sequence[Layer] | None = None,
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
    progress: bool | RunScreen = True,
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
        trust: import the code that the run's settings name.
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
    from rlobj.training.progress import shown

    changes = given_layers(settings)
    if isinstance(sampler, str):
        changes, sampler = [("sampler", nested("sampling.engine", sampler)), *changes], None
    inputs = CallerInputs(
        model, tokenizer, data, eval_on, reward, sampler, environment, tools, callbacks
    )
    with shown(progress) as screen:
        request = open_resumed(run, changes, inputs.layers(), trust=trust, processes=processes)
        return _train(request, inputs, processes, screen)


def _train(
    request: RunRequest, inputs: CallerInputs, processes: int | None, screen: RunScreen | None
) -> TrainingResult:
    """Train a run, here or in new processes.

    Raises:
        ConfigError: new processes cannot get what only this one has; or as `_train_in_processes`.
        MissingExtra: as `require_extras`.
        RunError: as `_train_here` or `_train_in_processes`.
    """
    listeners, config = _listeners(inputs, screen), request.config
    require_extras(config.training.strategy, config.model.lora is not None)
    if request.resumed and request.done == config.training.steps:
        _open(ResolvedRun(**vars(request), inputs=inputs), listeners)
        lines = RunFolder(request.path).lines()
        result = TrainingResult(request.path, request.done, 0.0, lines)
    elif processes not in (None, 1):
        if local := [*inputs.local(), *(["callbacks"] if inputs.callbacks else [])]:
            raise ConfigError(
                Argument("processes", processes),
                f" starts processes, which cannot get the Python objects passed as "
                f"{', '.join(local)}. Start this program with torchrun and leave out processes",
            )
        hardware = Hardware.of_this_machine(request.processes)
        run = resolve(request, hardware, inputs)
        _open(run, listeners)
        result = _train_in_processes(run, screen)
    else:
        for callback in listeners:
            callback.opening("importing transformers")
        result = _train_here(request, dataclasses.replace(inputs, callbacks=listeners))
    for callback in listeners:
        callback.ended(result)
    return result


def _train_in_processes(run: RunRequest, screen: RunScreen | None) -> TrainingResult:
    """Train the run in new processes, the first of which shows its progress where the screen is.

    Raises:
        ConfigError: the processes ended with exit code 2; the cause, a `CalledProcessError`, has
            the code, and the process itself has shown the error.
        RunError: they ended with another one.
    """
    start, place = time.perf_counter(), "none"
    if screen is not None:
        screen.hand_over()
        place = "stdout" if screen.console.file is sys.stdout else "stderr"
    with tempfile.TemporaryDirectory(prefix="rlobj-") as folder:
        if run.resumed:  # what it may import was asked here
            changes = flattened(merged(run.layers)).items()
            settings = [f"--set={path}={json.dumps(value)}" for path, value in changes]
            words = ["resume", str(run.path), "--trust", *settings]
        else:
            file = Path(folder) / "config.yaml"
            file.write_text(dump_config(run.config), encoding="utf-8")
            words = ["train", "--config", str(file), "--out", str(run.path)]
        code = launch([*words, f"--screen={place}"], run.processes)
    if code:
        kind = ConfigError if code == 2 else RunError
        raise kind(
            f"training in {run.processes} processes failed with exit code {code}; see above"
        ) from subprocess.CalledProcessError(code, words)
    done = RunFolder(run.path)
    return TrainingResult(run.path, done.steps_saved(), time.perf_counter() - start, done.lines())


def _train_here(run: RunRequest, inputs: CallerInputs) -> TrainingResult:
    """Train the run. An error that ends it says how to continue it; a Ctrl-C has that as a note.

    Not if the run has written nothing, if the same step would fail again, or if it stopped because
    of a finding that it is asked to stop on, whose error has its own advice.
    """
    from rlobj.training.loop.running import run_steps

    try:
        return run_steps(run, inputs)
    except KeyboardInterrupt as error:
        if is_run(run.path):
            error.add_note(how_to_go_on(run))
        raise
    except RunError as error:
        fails_again = isinstance(error.__cause__, BatchError | NoRoom)
        if not is_run(run.path) or fails_again or error.finding in run.config.training.stop_on:
            raise
        raise RunError(error, "\n", how_to_go_on(run), finding=error.finding) from error


def _open(run: ResolvedRun, listeners: Sequence[Callback]) -> None:
    for callback in listeners:
        callback.opened(run)


def _listeners(inputs: CallerInputs, screen: RunScreen | None) -> list[Callback]:
    """The caller's callbacks, and the screen."""
    return [*inputs.callbacks, *([] if screen is None else [screen])]
