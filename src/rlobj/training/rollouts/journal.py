"""Rollouts on disk, from the time they are sampled until a checkpoint covers their step.

    RUN/rollouts/step-000012/rank-0-of-2.npz

A run that is interrupted trains on them when it resumes: nothing is sampled twice. A file holds
plain arrays and JSON; reading one runs no code.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import re
import shutil
import zipfile
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlobj.data import Problem
from rlobj.rewards import Graded
from rlobj.samplers import Sample
from rlobj.training.parallel.agreement import any_rank, together
from rlobj.training.parallel.process_group import ProcessGroup
from rlobj.training.rollouts.collector import Response, Rollout
from rlobj.training.storage.run_directory import RunDirectory, step_name, step_of

__all__ = ["Journal", "pack_rollout", "unpack_rollout"]

logger = logging.getLogger(__name__)


class Journal:
    """The rollouts of a run that no checkpoint covers yet.

    Args:
        run: the run directory, the same for all ranks.
        comm: the process group.
        recipe: settings that the weights depend on and that a resumed run may change. A rollout
            with another recipe is only read if its weights are not newer than the checkpoint.
    """

    def __init__(self, run: RunDirectory, comm: ProcessGroup, recipe: str) -> None:
        self._run = run
        self._comm = comm
        self._recipe = recipe
        self.since = 0
        """The step that the run was resumed from."""

    @property
    def folder(self) -> Path:
        """RUN/rollouts."""
        return self._run.path / "rollouts"

    def write(self, step: int, rollout: Rollout) -> None:
        """Write this rank's part of a step's rollout."""
        folder = f"rollouts/{step_name(step)}"
        name = f"{folder}/rank-{self._comm.rank}-of-{self._comm.size}.npz"
        with together(self._comm, "writing a rollout"):
            (self._run.path / folder).mkdir(parents=True, exist_ok=True)
            # After a power cut an incomplete file is sampled again: no need to wait for the disk.
            with self._run.atomic(name, durable=False) as path:
                path.write_bytes(pack_rollout(rollout, self._recipe))

    def read(self, step: int) -> Rollout | None:
        """This rank's part of a step's rollout; None if any part is missing or unreadable.

        If it was written by another number of ranks, the groups are divided again.
        """
        files = self._files(step)
        divided_again = len(files) != self._comm.size
        rollouts = self._load(step, files if divided_again else files[self._comm.rank :][:1])
        if any_rank(not rollouts, self._comm):
            return None
        if not divided_again:
            return rollouts[0]
        return replace(
            rollouts[0],
            responses=self._own_groups(r for part in rollouts for r in part.responses),
            dead=self._own_groups(r for part in rollouts for r in part.dead),
        )

    def _load(self, step: int, files: Sequence[Path]) -> list[Rollout]:
        """The rollouts in some files; [] if one is damaged or has another recipe."""
        try:
            loaded = [unpack_rollout(file.read_bytes()) for file in files]
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            logger.warning("step %d is sampled again: cannot read %s: %s", step + 1, files, error)
            return []
        rollouts = [rollout for rollout, _ in loaded]
        versions = [
            r.sample.weight_version for part in rollouts for r in part.responses + part.dead
        ]
        same = all(recipe == self._recipe for _, recipe in loaded)
        return rollouts if same or max(versions, default=0) <= self.since else []

    def _files(self, step: int) -> list[Path]:
        """The files of all ranks that took part, in rank order; [] if one is missing."""
        found: dict[int, dict[int, Path]] = {}
        folder = self.folder / step_name(step)
        for path in folder.glob("rank-*-of-*.npz"):
            rank, size = map(int, re.findall(r"\d+", path.name))
            found.setdefault(size, {})[rank] = path
        if not found and any(folder.glob("rank-*-of-*")) and self._comm.rank == 0:
            logger.warning(
                "step %d is sampled again: its rollout is in the format of rlobj 0.1.0, which is "
                "not read any more",
                step + 1,
            )
        whole = [size for size, ranks in found.items() if len(ranks) == size]
        if not whole:
            return []
        size = self._comm.size if self._comm.size in whole else max(whole)
        return [found[size][rank] for rank in range(size)]

    def _own_groups(self, responses: Iterable[Response]) -> list[Response]:
        """The responses of the groups that this rank takes over, group after group."""
        groups: dict[int, list[Response]] = {}
        for response in responses:
            groups.setdefault(response.group, []).append(response)
        own = sorted(groups)[self._comm.rank :: self._comm.size]
        return [response for group in own for response in groups[group]]

    def drop(self, step: int) -> None:
        """Delete the rollout of a step that must not be trained on. Called by one rank."""
        shutil.rmtree(self.folder / step_name(step), ignore_errors=True)

    def forget(self, before: int) -> None:
        """Delete the rollouts of the steps before one. Called by one rank."""
        for path in self.folder.glob("step-*"):
            if step_of(path) < before:
                shutil.rmtree(path, ignore_errors=True)

    def copy_into(self, folder: Path, steps: Iterable[int]) -> None:
        """Copy the rollouts of some steps into a checkpoint."""
        for step in steps:
            source = self.folder / step_name(step)
            if source.is_dir():
                shutil.copytree(source, folder / source.name)

    def copy_from(self, folder: Path) -> None:
        """Copy the rollouts of a checkpoint back."""
        for source in folder.glob("step-*"):
            shutil.copytree(source, self.folder / source.name, dirs_exist_ok=True)


def pack_rollout(rollout: Rollout, recipe: str) -> bytes:
    """A rollout as an .npz file: token ids, log-probs, and all else as JSON; exact to the bit.

    The seconds it took are left out, and so are the extra columns of its problems: only grading
    reads them, and the grades are stored.
    """
    responses = [*rollout.responses, *rollout.dead]
    samples = [response.sample for response in responses]
    facts = {
        "recipe": recipe,
        "batches": rollout.batches,
        "stream": rollout.stream,
        "kept": len(rollout.responses),
        "responses": [_facts(response) for response in responses],
    }
    text = json.dumps(facts, default=lambda number: number.item())  # a grader may return numpy's
    file = io.BytesIO()
    np.savez(
        file,
        facts=np.frombuffer(text.encode("ascii"), np.uint8),
        prompt_lengths=np.array([len(s.prompt) for s in samples], np.int64),
        lengths=np.array([len(s.tokens) for s in samples], np.int64),
        prompts=_joined([s.prompt for s in samples], np.int32),
        tokens=_joined([s.tokens for s in samples], np.int32),
        logprobs=_joined([s.logprobs for s in samples], np.float32),
    )
    return file.getvalue()


def unpack_rollout(content: bytes) -> tuple[Rollout, str]:
    """The rollout and the recipe that `pack_rollout` was given.

    Raises:
        zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError: the content is damaged.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        facts = json.loads(arrays["facts"].tobytes())
        prompts = _split(arrays["prompts"], arrays["prompt_lengths"])
        tokens = _split(arrays["tokens"], arrays["lengths"])
        logprobs = _split(arrays["logprobs"], arrays["lengths"])
    responses: list[Response] = []
    shared: dict[bytes, Any] = {}  # a group's responses share one prompt
    for stored, prompt, *columns in zip(facts["responses"], prompts, tokens, logprobs, strict=True):
        prompt = shared.setdefault(prompt.tobytes(), prompt)
        id_, group, problem, reward, grade, sample = stored
        responses.append(
            Response(
                id_,
                group,
                Problem(*problem),
                Sample(prompt, *columns, *sample),
                Graded(*grade),
                reward,
            )
        )
    kept = facts["kept"]
    seconds: dict[str, float] = {"sample": 0.0, "grade": 0.0, "hidden": 0.0, "write": 0.0}
    parts = (responses[:kept], responses[kept:], facts["batches"], seconds, facts["stream"])
    return Rollout(*parts), facts["recipe"]


def _facts(response: Response) -> list[Any]:
    """All of a response but its token ids and log-probs."""
    problem, sample = response.problem, response.sample
    return [
        response.id,
        response.group,
        [problem.id, problem.prompt, problem.answer],
        response.reward,
        astuple(response.grade),
        [sample.text, sample.finish, sample.weight_version],
    ]


def _joined(parts: Sequence[Any], dtype: type) -> Any:
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(part, dtype) for part in parts)])


def _split(joined: Any, lengths: Any) -> list[Any]:
    """Arrays as `Sample` holds them."""
    code = "f" if joined.dtype == np.float32 else "i"
    ends = [0, *np.cumsum(lengths).tolist()]
    return [array(code, joined[a:b].tobytes()) for a, b in itertools.pairwise(ends)]
