"""Rollouts on disk, from the time they are sampled until a checkpoint covers their step.

    RUN/rollouts/step-000012/rank-0-of-2.json

A run that is interrupted trains on them when it resumes: nothing is sampled twice. A file is
JSON; reading one runs no code.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import shutil
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlobj.base.files import parse_json, read_whole, step_name, step_of, write_whole
from rlobj.config.run_folder import RunFolder
from rlobj.data import Problem
from rlobj.ranks import ProcessGroup, any_rank, together
from rlobj.rewards import Graded
from rlobj.samplers import Sample
from rlobj.training.rollouts.collector import Response, Rollout

logger = logging.getLogger(__name__)

_MOST = 1 << 31
"""Bytes of the largest file of a rollout that is read."""


@dataclass
class Journal:
    """The rollouts of a run that no checkpoint covers yet.

    Attributes:
        run: the run directory, the same for all ranks.
        comm: the process group.
        since: the step that the run was resumed from.
        key: the `rollout_key` of the run. A rollout whose key differs after its first word is only
            read if its weights are not newer than the checkpoint.
    """

    run: RunFolder
    comm: ProcessGroup
    since: int = 0
    key: str = ""

    @property
    def folder(self) -> Path:
        """RUN/rollouts."""
        return self.run.path / "rollouts"

    def write(self, step: int, rollout: Rollout) -> None:
        """Write this rank's part of a step's rollout."""
        folder = f"rollouts/{step_name(step)}"
        name = f"{folder}/rank-{self.comm.rank}-of-{self.comm.size}.json"
        with together(self.comm, "writing a rollout"):
            (self.run.path / folder).mkdir(parents=True, exist_ok=True)
            # After a power cut an incomplete file is sampled again: no need to wait for the disk.
            content = pack_rollout(rollout, self.key)
            write_whole(self.run.path / name, content, durable=False)

    def read(self, step: int) -> Rollout | None:
        """This rank's part of a step's rollout; None if any part is missing or unreadable.

        If it was written by another number of ranks, the groups are divided again.
        """
        files = self._files(step)
        divided_again = len(files) != self.comm.size
        rollouts = self._load(step, files if divided_again else files[self.comm.rank :][:1])
        if any_rank(not rollouts, self.comm):
            return None
        if not divided_again:
            return rollouts[0]
        return replace(
            rollouts[0],
            responses=self._own_groups(r for part in rollouts for r in part.responses),
            dead=self._own_groups(r for part in rollouts for r in part.dead),
        )

    def _load(self, step: int, files: Sequence[Path]) -> list[Rollout]:
        """The rollouts in some files; [] if one is damaged or belongs to other settings."""
        try:
            loaded = [unpack_rollout(read_whole(file, _MOST)) for file in files]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("step %d is sampled again: cannot read %s: %s", step + 1, files, error)
            return []
        rollouts = [rollout for rollout, _ in loaded]
        versions = [
            r.sample.weight_version for part in rollouts for r in part.responses + part.dead
        ]
        early = max(versions, default=0) <= self.since
        own = self.key.split(" ")[:1] if early else self.key.split(" ")
        return rollouts if all(key.split(" ")[: len(own)] == own for _, key in loaded) else []

    def _files(self, step: int) -> list[Path]:
        """The files of all ranks that took part, in rank order; [] if one is missing."""
        found: dict[int, dict[int, Path]] = {}
        for path in (self.folder / step_name(step)).glob("rank-*-of-*.json"):
            if match := re.fullmatch(r"rank-(\d+)-of-(\d+)\.json", path.name):
                rank, size = map(int, match.groups())
                found.setdefault(size, {})[rank] = path
        whole = [size for size, ranks in found.items() if len(ranks) == size == max(ranks) + 1]
        if not whole:
            return []
        size = self.comm.size if self.comm.size in whole else max(whole)
        return [found[size][rank] for rank in range(size)]

    def _own_groups(self, responses: Iterable[Response]) -> list[Response]:
        """The responses of the groups that this rank takes over, group after group."""
        groups: dict[int, list[Response]] = {}
        for response in responses:
            groups.setdefault(response.group, []).append(response)
        own = sorted(groups)[self.comm.rank :: self.comm.size]
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


def pack_rollout(rollout: Rollout, key: str) -> bytes:
    """A rollout as text: a line with the CRC-32 of what follows, then one JSON object.

    Token ids and log-probs are base64 of their bytes, so that every number is exact. The seconds it
    took are left out, and so are the extra columns of its problems: only grading reads them.
    """
    facts = {
        "key": key,
        "batches": rollout.batches,
        "surplus": rollout.surplus,
        "stream": rollout.stream,
        "responses": [_packed(response) for response in rollout.responses],
        "dead": [_packed(response) for response in rollout.dead],
    }
    content = json.dumps(facts, default=lambda number: number.item()).encode()  # numpy's have item
    return b"%08x\n" % zlib.crc32(content) + content


def unpack_rollout(data: bytes) -> tuple[Rollout, str]:
    """The rollout and the key that `pack_rollout` was given.

    Raises:
        ValueError: the data is damaged.
    """
    crc, _, content = data.partition(b"\n")
    if crc != b"%08x" % zlib.crc32(content):
        raise ValueError("the file is damaged")
    facts = parse_json(content)
    prompts: dict[str, array[int]] = {}  # the responses of a group share their prompt
    responses, dead = (
        [_unpacked(stored, prompts) for stored in facts[kind]] for kind in ("responses", "dead")
    )
    counts = (facts["batches"], defaultdict(float), facts["stream"], facts["surplus"])
    return Rollout(responses, dead, *counts), str(facts["key"])


def _packed(response: Response) -> list[Any]:
    problem, sample, grade = response.problem, response.sample, response.grade
    arrays = (sample.prompt, sample.tokens, sample.logprobs)
    return [
        [response.id, response.group, response.reward],
        [problem.id, problem.prompt, problem.answer],
        [base64.b64encode(values.tobytes()).decode() for values in arrays],
        [sample.text, sample.finish, sample.weight_version],
        [grade.reward, grade.correct, grade.reason, grade.answer, *grade.rewards],
    ]


def _unpacked(stored: list[Any], prompts: dict[str, array[int]]) -> Response:
    (number, group, reward), problem, (prompt, tokens, logprobs), rest, grade = stored
    sample = Sample(
        prompts.setdefault(prompt, array("i", base64.b64decode(prompt))),
        array("i", base64.b64decode(tokens)),
        array("f", base64.b64decode(logprobs)),
        *rest,
    )
    graded = Graded(*grade[:4], rewards=tuple(grade[4:]))
    return Response(number, group, Problem(*problem), sample, graded, reward)
