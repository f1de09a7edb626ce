"""A run on disk:

    RUN/config.resolved.yaml     every setting of the run
    RUN/metrics.jsonl            one object a step
    RUN/samples/step-000010.parquet
    RUN/tokens/step-000010.parquet
    RUN/checkpoints/step-000010/ model/ (a Hugging Face folder), optimizer.pt, state.json, random.pt

Every file appears whole or not at all: written beside its place, then renamed.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError

from rlobj.config import RunConfig
from rlobj.errors import ConfigError, RunError
from rlobj.presets import read_yaml

__all__ = ["RunDirectory", "dump_config"]

logger = logging.getLogger(__name__)


def dump_config(config: RunConfig) -> str:
    """The configuration as YAML that `RunConfig` reads back to the same."""
    import yaml

    return yaml.safe_dump(
        config.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True
    )


class RunDirectory:
    """The files of one run.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"

    def refuse_if_taken(self) -> None:
        """Raises ConfigError where a run lies in the folder already."""
        if (self.path / "config.resolved.yaml").exists():
            raise ConfigError(
                f"{self.path} holds a run already. Continue it with: rlobj train --resume "
                f"{self.path}\nor choose another folder with --out DIR"
            )

    def create(self, config: RunConfig) -> None:
        """A new run's folder with its configuration.

        Raises:
            ConfigError: a run lies there already, or the folder cannot be written.
        """
        self.refuse_if_taken()
        try:
            for folder in ("samples", "tokens", "checkpoints"):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            with self.atomic("config.resolved.yaml") as place:
                place.write_text(dump_config(config), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the run to {self.path}: {error}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second process from training into the same folder.

        Raises:
            ConfigError: one is at it.
        """
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ConfigError(f"another process is training in {self.path}") from error
            yield

    @classmethod
    def open(cls, path: Path) -> tuple[RunDirectory, RunConfig]:
        """An existing run's folder and configuration.

        Raises:
            ConfigError: no run lies there.
        """
        file = path / "config.resolved.yaml"
        if not file.is_file():
            raise ConfigError(f"{path} is not a run: it has no config.resolved.yaml")
        return cls(path), RunConfig(**read_yaml(file))

    @contextmanager
    def atomic(self, name: str) -> Iterator[Path]:
        """A place to write a file or folder; it gets its name once the block has ended well."""
        final = self.path / name
        place = final.with_name(f".{final.name}.partial")
        _remove(place)
        try:
            yield place
            _sync(place)
        except BaseException:
            _remove(place)
            raise
        if final.is_dir():
            shutil.rmtree(final)
        os.replace(place, final)
        _sync_one(final.parent)

    # metrics.jsonl

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl; what is not finite becomes null."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in metrics.items()
        }
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """What metrics.jsonl holds; a last line cut off by a crash is left out."""
        if not self.metrics.exists():
            return []
        found = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return found

    def truncate(self, step: int) -> None:
        """Forget all that lies past a step, so that it can be done again."""
        kept = [line for line in self.lines() if line["step"] <= step]
        with self.atomic("metrics.jsonl") as place:
            place.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        for folder in ("samples", "tokens", "checkpoints"):
            for entry in (self.path / folder).glob("step-*"):
                if _step_of(entry) > step:
                    _remove(entry)

    # checkpoints

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        optimizer: Any,
        save_model: Callable[[Path], None],
        keep: int,
    ) -> Path:
        """Write a checkpoint, then delete the oldest beyond `keep`.

        Raises:
            RunError: the disk refused; the checkpoints that were there are untouched.
        """
        try:
            with self.atomic(f"checkpoints/{_name(step)}") as place:
                place.mkdir()
                save_model(place / "model")
                torch.save(optimizer.state_dict(), place / "optimizer.pt")
                torch.save(_random_state(), place / "random.pt")
                (place / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
        except (OSError, RuntimeError, SafetensorError) as error:  # torch's writer has no OSError
            raise RunError(f"cannot write a checkpoint to {self.checkpoints}: {error}") from error
        for old in self.saved()[:-keep]:
            _remove(old)
        return self.checkpoints / _name(step)

    def saved(self) -> list[Path]:
        """The complete checkpoints, oldest first."""
        found = [path for path in self.checkpoints.glob("step-*") if _step_of(path) >= 0]
        return sorted(found, key=_step_of)

    def latest(self) -> Path | None:
        """The newest checkpoint, or None before the first."""
        saved = self.saved()
        return saved[-1] if saved else None


def load_state(checkpoint: Path, optimizer: Any) -> dict[str, Any]:
    """Put the optimizer and the random generators back, and return the saved state.

    Raises:
        RunError: a file of the checkpoint cannot be read.
    """
    try:
        state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        saved = torch.load(checkpoint / "optimizer.pt", map_location="cpu", weights_only=True)
        optimizer.load_state_dict(saved)
        _restore_random(torch.load(checkpoint / "random.pt", weights_only=False))
    except (OSError, ValueError, RuntimeError, KeyError, EOFError, UnpicklingError) as error:
        raise RunError(
            f"the checkpoint {checkpoint} cannot be read: {error}\nDelete that folder to resume "
            "from the one before."
        ) from error
    return state


def _random_state() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def _restore_random(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count() > 0:  # other hardware: other numbers
        torch.cuda.set_rng_state_all(state["cuda"])


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _step_of(path: Path) -> int:
    match = re.match(r"step-(\d+)", path.name)
    return int(match[1]) if match else -1


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Have the disk hold every byte before the rename tells of them."""
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        _sync_one(file)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
