"""Train a run in new processes on this machine, new or resumed, and read what they leave."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rlobj.base.errors import Argument, ConfigError, RunError
from rlobj.runs.configuration import dump_config
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.layers import flattened, merged
from rlobj.training.parallel.launcher import launch
from rlobj.training.resolving import RunRequest

if TYPE_CHECKING:
    from rlobj.training.loop.inputs import CallerInputs
    from rlobj.training.loop.result import TrainingResult
    from rlobj.training.progress import RunScreen


def launches(processes: int | None, inputs: CallerInputs) -> bool:
    """Whether new processes do the work.

    Raises:
        ConfigError: something that only this process has.
    """
    if processes is None or processes == 1:
        return False
    local = [*inputs.local(), *(["callbacks"] if inputs.callbacks else [])]
    if local:
        raise ConfigError(
            Argument("processes", processes),
            f" starts processes, which cannot get the Python objects passed as "
            f"{', '.join(local)}. Start this program with torchrun and leave out processes",
        )
    return True


def train_in_processes(run: RunRequest, screen: RunScreen | None) -> TrainingResult:
    """Train the run in new processes, the first of which shows its progress where the screen is.

    Raises:
        ConfigError: the processes ended with exit code 2; the cause, a `CalledProcessError`, has
            the code, and the process itself has shown the error.
        RunError: they ended with another one.
    """
    from rlobj.training.loop.result import TrainingResult

    start, place = time.perf_counter(), "none"
    if screen is not None:
        screen.hand_over()
        place = "stdout" if screen.console.file is sys.stdout else "stderr"
    with tempfile.TemporaryDirectory(prefix="rlobj-") as folder:
        words = _words(run, Path(folder) / "config.yaml")
        code = launch([*words, f"--screen={place}"], run.processes)
    if code:
        kind = ConfigError if code == 2 else RunError
        raise kind(
            f"training in {run.processes} processes failed with exit code {code}; see above"
        ) from subprocess.CalledProcessError(code, words)
    done = RunFolder(run.path)
    return TrainingResult(run.path, done.steps_saved(), time.perf_counter() - start, done.lines())


def _words(run: RunRequest, file: Path) -> list[str]:
    """The words after `rlobj` for the run; the settings of a new one are written to the file."""
    if run.resumed:  # what it may import was asked here
        changes = flattened(merged(run.layers)).items()
        settings = [f"--set={path}={json.dumps(value)}" for path, value in changes]
        return ["resume", str(run.path), "--trust", *settings]
    file.write_text(dump_config(run.config), encoding="utf-8")
    return ["train", "--config", str(file), "--out", str(run.path)]
