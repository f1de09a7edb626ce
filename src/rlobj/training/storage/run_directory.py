"""The folder of a run:

    RUN/config.resolved.yaml     every setting of the run
    RUN/metrics.jsonl            one JSON object per step
    RUN/sessions.jsonl           one JSON object per start: time, step, versions
    RUN/samples/step-000010.parquet
    RUN/records/                 see `rlobj.records.recorder`
    RUN/tables/step-000010-rank-0.parquet
    RUN/initial/                 the policy that came from another run
    RUN/rollouts/                see `rollouts.journal`
    RUN/checkpoints/step-000010/ see `storage.checkpoint`

Files are written under a temporary name and renamed when complete; metrics.jsonl is appended to.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rlobj.answers import verifier_version
from rlobj.base.errors import ConfigError, RunError
from rlobj.base.files import lock_folder, nearby, write_whole
from rlobj.config import run_folder
from rlobj.config.run_config import RunConfig, given_settings, settings_of
from rlobj.config.run_folder import STOP_FILE, step_of
from rlobj.installation import session
from rlobj.records.rows import write_parquet

logger = logging.getLogger(__name__)

FOLDERS = ("samples", "records", "tables", "rollouts", "checkpoints")
"""The folders of a new run."""


def dump_config(config: RunConfig) -> str:
    """Convert the configuration to YAML, from which `RunConfig` reads an equal one."""
    return _yaml(settings_of(config))


def _yaml(settings: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)


class RunDirectory:
    """The files of one run.

    Args:
        path: the folder.
        foreign: another trainer makes the run; only the given settings are written.
    """

    def __init__(self, path: Path | str, foreign: bool = False) -> None:
        self.path, self._foreign = Path(path).absolute(), foreign
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"

    def refuse_if_taken(self) -> None:
        """Raise ConfigError if the folder already has a run or parts of one."""
        if run_folder.is_run(self.path):
            raise ConfigError(
                f"{self.path} already contains a run. {run_folder.how_to_continue(self.path)}\n"
                "or choose another folder with out=DIR"
            )
        left = [self.metrics, *self.path.glob("*/step-*")]
        if any(path.exists() for path in left):
            raise ConfigError(
                f"{self.path} contains parts of a run without its config.resolved.yaml. Choose "
                "another folder with out=DIR"
            )

    def adopted(self, config: RunConfig) -> RunConfig:
        """The configuration with the run's own copy of a policy that comes from another run."""
        if config.origin is None:
            return config
        model = config.model.model_copy(update={"name": str(self.path / "initial")})
        return config.model_copy(update={"model": model})

    def create(
        self, config: RunConfig, folders: Sequence[str] = FOLDERS, initial: str | None = None
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
        try:
            for folder in folders:
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            if initial is not None:
                shutil.copytree(initial, str(config.model.name), copy_function=_link)
            self.write_config(config)
        except (OSError, RunError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot write the run to {nearby(self.path)}: {reason}") from error

    def write_config(self, config: RunConfig) -> None:
        """Write or replace the run's configuration."""
        text = _yaml(given_settings(config)) if self._foreign else dump_config(config)
        write_whole(self.path / run_folder.CONFIG_FILE, text.encode())

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder, so that no second process trains in it.

        Raises:
            ConfigError: another process has the lock, or the folder cannot be written.
        """
        return lock_folder(self.path, "training in")

    def write_table(self, name: str, columns: Mapping[str, list[Any]]) -> None:
        """Write the columns to a Parquet file."""
        import pyarrow

        write_parquet(self.path / name, pyarrow.table(dict(columns)))

    @functools.cached_property
    def id(self) -> str:
        """Random id of the run, which its sessions have; a new one before the first."""
        known = [str(each["run"]) for each in run_folder.read_sessions(self.path) if "run" in each]
        return known[0] if known else secrets.token_hex(8)

    def add_session(self, step: int, changed: Mapping[str, tuple[Any, Any]]) -> None:
        """Record that training starts after a step, and what may change its results.

        Args:
            step: the steps done.
            changed: settings that were changed (before, now).

        Raises:
            OSError: the file cannot be written.
        """
        facts = {"run": self.id, "format": run_folder.FORMAT, **session("started"), "step": step}
        facts["verifier"] = verifier_version()
        with (self.path / "sessions.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts | ({"changed": changed} if changed else {})) + "\n")

    # metrics.jsonl

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl; numbers that are not finite become null."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in metrics.items()
        }
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """Read metrics.jsonl; a warning names each damaged line, which is left out."""
        return run_folder.read_metrics(self.path)

    def truncate(self, step: int) -> None:
        """Delete metrics, tables and checkpoints of later steps, so that they can be repeated.

        A damaged metrics.jsonl stays as metrics.damaged.jsonl.
        """
        damage: list[str] = []
        lines = run_folder.read_metrics(self.path, damage)
        kept = [line for line in lines if line["step"] <= step]
        if damage:
            remove(aside := self.path / "metrics.damaged.jsonl")
            _link(str(self.metrics), str(aside))
        if (known := len({line["step"] for line in kept} - {0})) < step:
            logger.warning(
                "%s has lines of %d of %d steps. Checkpoints of the others are not removed: they "
                "may be the best",
                *(self.metrics, known, step),
            )
        write_whole(self.metrics, "".join(json.dumps(line) + "\n" for line in kept).encode())
        for folder in ("samples", "records", "tables", "checkpoints"):
            for entry in (self.path / folder).glob("step-*"):
                if step_of(entry) > step:
                    remove(entry)
        for partial in self.checkpoints.glob(".*.partial"):
            remove(partial)
        remove(self.path / STOP_FILE)

    def steps_saved(self) -> int:
        """Return the step of the newest checkpoint; 0 before the first."""
        newest = run_folder.newest_checkpoint(self.path)
        return 0 if newest is None else step_of(newest)


def _link(source: str, target: str) -> None:
    """Link a file that never changes, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def step_name(step: int) -> str:
    """Return the name of a step's files and folders."""
    return f"step-{step:06d}"


def remove(path: Path) -> None:
    """Delete a file or folder if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def settle(temporary: Path, final: Path) -> None:
    """Rename a folder to its final name when the disk has all of its bytes."""
    for file in [temporary, *temporary.rglob("*")]:
        _sync_one(file)
    if final.is_dir():
        shutil.rmtree(final)
    os.replace(temporary, final)
    _sync_one(final.parent)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
