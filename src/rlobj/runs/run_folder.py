"""RunFolder: writes the folder of a run.

Files are written under a temporary name and renamed when complete; metrics.jsonl is appended to.
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rlobj.answers import verifier_version
from rlobj.base.errors import Argument, ConfigError, RunError, reported
from rlobj.base.files import append_whole, link, remove, write_whole
from rlobj.base.folders import lock_folder
from rlobj.base.launched import command_line
from rlobj.base.paths import nearby, step_of
from rlobj.installation import commit, session
from rlobj.runs import layout
from rlobj.runs.checkpoints import newest_checkpoint
from rlobj.runs.configuration import FORMAT, dump_config, read_sessions
from rlobj.runs.metrics import read_metrics
from rlobj.settings.run_config import RunConfig


class RunFolder:
    """The files of one run.

    Args:
        path: the folder.
        foreign: another trainer makes the run; only the given settings are written.
    """

    def __init__(self, path: Path | str, foreign: bool = False) -> None:
        self.path, self._foreign = Path(path).absolute(), foreign
        self.metrics = self.path / layout.METRICS_FILE
        self.checkpoints = self.path / "checkpoints"

    def refuse_if_taken(self) -> None:
        """Raise ConfigError if the folder has a run with a finished step, or parts of one."""
        steps = [step_of(path) for path in self.path.glob("*/step-*")]
        if any(steps) or any(line["step"] for line in self.lines()):
            how = f"already contains a run. {layout.how_to_continue(self.path)}\nor choose"
            raise ConfigError(f"{self.path} {how} another folder with ", Argument("out", "DIR"))

    def adopted(self, config: RunConfig) -> RunConfig:
        """The configuration with the run's own copy of a policy that comes from another run."""
        if config.origin is None:
            return config
        model = config.model.model_copy(update={"name": str(self.path / "initial")})
        return config.model_copy(update={"model": model})

    def create(
        self, config: RunConfig, folders: Sequence[str] = layout.FOLDERS, initial: str | None = None
    ) -> None:
        """Create the folder of a new run with empty folders in it, and write its configuration.

        Args:
            config: of the run.
            folders: the empty folders.
            initial: the model of an `adopted` configuration, which is linked or copied.

        Raises:
            ConfigError: the folder already has a run, or cannot be written.
        """
        self.refuse_if_taken()
        where = f"cannot write the run to {nearby(self.path)}"
        with reported(ConfigError, where, OSError, RunError):
            if layout.is_run(self.path):  # which finished no step
                self.truncate(-1)
                remove(self.path / layout.SESSIONS_FILE)
                remove(self.path / "initial")
            for folder in folders:
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            if initial is not None:
                shutil.copytree(initial, str(config.model.name), copy_function=link)
            self.write_config(config)

    def write_config(self, config: RunConfig) -> None:
        """Write or replace the run's configuration."""
        text = dump_config(config, only_given=self._foreign)
        write_whole(self.path / layout.CONFIG_FILE, text.encode())

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder, so that no second process trains in it.

        Raises:
            ConfigError: another process has the lock, or the folder cannot be written.
        """
        return lock_folder(self.path, "training in")

    def add_session(self, step: int, changed: Mapping[str, tuple[Any, Any]]) -> None:
        """Record that training starts after a step, and what may change its results.

        Args:
            step: the steps done.
            changed: settings that were changed (before, now).

        Raises:
            RunError: the file cannot be written.
        """
        facts = {"format": FORMAT, **session("started"), "step": step}
        facts |= {"verifier": verifier_version(), "command": command_line(), "commit": commit()}
        sessions = [*read_sessions(self.path), facts | ({"changed": changed} if changed else {})]
        text = "".join(json.dumps(session) + "\n" for session in sessions)
        write_whole(self.path / layout.SESSIONS_FILE, text.encode())

    # metrics.jsonl

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl; numbers that are not finite become null."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in metrics.items()
        }
        append_whole(self.metrics, (json.dumps(finite) + "\n").encode(), sync=True)

    def lines(self) -> list[dict[str, Any]]:
        """Read metrics.jsonl."""
        return read_metrics(self.path)

    def truncate(self, step: int) -> None:
        """Delete metrics, tables and checkpoints of later steps, so that they can be repeated."""
        kept = [line for line in self.lines() if line["step"] <= step]
        write_whole(self.metrics, "".join(json.dumps(line) + "\n" for line in kept).encode())
        for folder in layout.FOLDERS:
            for entry in (self.path / folder).glob("step-*"):
                if step_of(entry) > step:
                    remove(entry)
        for partial in self.checkpoints.glob(".*.partial"):
            remove(partial)
        remove(self.path / layout.STOP_FILE)

    def steps_saved(self) -> int:
        """Return the step of the newest checkpoint; 0 before the first."""
        newest = newest_checkpoint(self.path)
        return 0 if newest is None else step_of(newest)
