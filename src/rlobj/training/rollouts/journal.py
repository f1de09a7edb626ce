"""Rollouts on disk, from when they are sampled until a checkpoint makes them history.

    RUN/rollouts/step-000012/rank-0-of-2

A run that is cut off trains on them again: what was sampled is not sampled twice.
"""

from __future__ import annotations

import logging
import pickle
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rlobj.training.parallel.agreement import any_rank, together
from rlobj.training.parallel.process_group import ProcessGroup
from rlobj.training.rollouts.collector import Response, Rollout
from rlobj.training.storage.run_directory import RunDirectory, step_name, step_of

__all__ = ["Journal"]

logger = logging.getLogger(__name__)


class Journal:
    """The rollouts of a run that no checkpoint lies behind yet.

    Args:
        run: the run's folder, the same for all ranks.
        comm: the process group.
        recipe: what, beside the run's own configuration, weights depend on. Rollouts of another
            recipe are read only where their weights are those of the checkpoint or older.
    """

    def __init__(self, run: RunDirectory, comm: ProcessGroup, recipe: str) -> None:
        self._run = run
        self._comm = comm
        self._recipe = recipe
        self.since = 0
        """The step that the run goes on from."""

    @property
    def folder(self) -> Path:
        """Where they lie."""
        return self._run.path / "rollouts"

    def write(self, step: int, rollout: Rollout) -> None:
        """Keep this rank's part of a step's rollout."""
        folder = f"rollouts/{step_name(step)}"
        name = f"{folder}/rank-{self._comm.rank}-of-{self._comm.size}"
        with together(self._comm, "keeping a rollout"):
            (self._run.path / folder).mkdir(parents=True, exist_ok=True)
            # What a power cut leaves of it is sampled again: no need to wait for the disk.
            with self._run.atomic(name, durable=False) as place:
                place.write_bytes(pickle.dumps((self._recipe, rollout)))

    def read(self, step: int) -> Rollout | None:
        """This rank's part of a step's rollout; None where it is not there whole.

        Groups that another number of ranks left are dealt out anew.
        """
        parts = self._parts(step)
        anew = len(parts) != self._comm.size
        rollouts = self._loaded(step, parts if anew else parts[self._comm.rank :][:1])
        if any_rank(not rollouts, self._comm):
            return None
        if not anew:
            return rollouts[0]
        return replace(
            rollouts[0],
            responses=self._dealt(r for part in rollouts for r in part.responses),
            dead=self._dealt(r for part in rollouts for r in part.dead),
        )

    def _loaded(self, step: int, parts: Sequence[Path]) -> list[Rollout]:
        """The rollouts in some files; [] if one is broken, or its weights are of another course."""
        try:
            loaded = [pickle.loads(part.read_bytes()) for part in parts]
        except Exception as error:  # pickle raises whatever the classes of a damaged file do
            logger.warning("sampling step %d again: %s cannot be read: %s", step, parts[0], error)
            return []
        same = all(recipe == self._recipe for recipe, _ in loaded)
        rollouts = [rollout for _, rollout in loaded]
        versions = [
            r.sample.weight_version for part in rollouts for r in part.responses + part.dead
        ]
        return rollouts if same or max(versions, default=0) <= self.since else []

    def _parts(self, step: int) -> list[Path]:
        """The files of all ranks that took part, in rank order; [] if one is missing."""
        found: dict[int, dict[int, Path]] = {}
        for path in (self.folder / step_name(step)).glob("rank-*-of-*"):
            rank, size = map(int, re.findall(r"\d+", path.name))
            found.setdefault(size, {})[rank] = path
        whole = [size for size, ranks in found.items() if len(ranks) == size]
        if not whole:
            return []
        size = self._comm.size if self._comm.size in whole else max(whole)
        return [found[size][rank] for rank in range(size)]

    def _dealt(self, responses: Iterable[Response]) -> list[Response]:
        """This rank's groups of all, each whole."""
        groups: dict[int, list[Response]] = {}
        for response in responses:
            groups.setdefault(response.group, []).append(response)
        own = sorted(groups)[self._comm.rank :: self._comm.size]
        return [response for group in own for response in groups[group]]

    def drop(self, step: int) -> None:
        """Delete a step's rollout: it is not to be trained on. Called by one rank."""
        shutil.rmtree(self.folder / step_name(step), ignore_errors=True)

    def forget(self, before: int) -> None:
        """Delete the rollouts of the steps before one; called by one rank."""
        for path in self.folder.glob("step-*"):
            if step_of(path) < before:
                shutil.rmtree(path, ignore_errors=True)

    def copy_into(self, folder: Path, steps: Iterable[int]) -> None:
        """Copy the rollouts of some steps, for a checkpoint."""
        for step in steps:
            source = self.folder / step_name(step)
            if source.is_dir():
                shutil.copytree(source, folder / source.name)

    def copy_from(self, folder: Path) -> None:
        """Take back what a checkpoint holds."""
        for source in folder.glob("step-*"):
            shutil.copytree(source, self.folder / source.name, dirs_exist_ok=True)
