"""Rollouts on disk, from the time they are sampled until a checkpoint covers their step.

    RUN/rollouts/step-000012/rank-0-of-2.json

A run that is interrupted trains on them when it resumes: nothing is sampled twice. A file is
JSON; reading one runs no code.

Rollouts in the order of their steps, each sampled a fixed number of steps ahead.

With depth 0 a step samples, then trains. With depth k the rollout of step t is sampled while the k
steps before it are trained, from the weights of version max(0, t - k). It is exactly k steps old,
so that a resumed run sees the same rollouts.

Weight synchronization from the trainer to the sampler, and the checks of its weights.

Digests compare every tensor that was sent with the tensor that arrived, and with the tensor that
the engine computes with. They work at any learning rate.

Sample tables of a step, as Parquet.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
import time
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from rlobj.base.files import parse_json, read_whole, step_name, step_of, write_whole
from rlobj.config.run_folder import RunFolder
from rlobj.conversations.grading import described
from rlobj.conversations.ledger import Ledger, from_text, packed_turn, to_text, unpacked_turn
from rlobj.data import Problem
from rlobj.ranks import ProcessGroup, any_rank, together
from rlobj.rewards import Graded
from rlobj.samplers import Held, Live, Sample, Sampler, Sent, compare, compare_live
from rlobj.training.rollouts.collector import Collector, Response, Rollout

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
        self.ledger(step).delete()

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
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            logger.warning("step %d is sampled again: cannot read %s: %s", step + 1, files, error)
            return []
        rollouts = [rollout for rollout, _ in loaded]
        versions = [
            r.sample.weight_version for part in rollouts for r in part.responses + part.dead
        ]
        newest = max(versions, default=0)
        return rollouts if all(self._fits(key, newest) for _, key in loaded) else []

    def _fits(self, key: str, version: int) -> bool:
        """Whether what was drawn in a run with this key, at this weight version, is of this run."""
        own = self.key.split(" ")[:1] if version <= self.since else self.key.split(" ")
        return key.split(" ")[: len(own)] == own

    def ledger(self, step: int) -> Ledger:
        """The turns of a step's conversations."""
        return Ledger(self.folder / step_name(step), self.comm.rank, self.key, self._fits)

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
    return [
        [response.id, response.group, response.reward],
        [problem.id, problem.prompt, problem.answer, {}, problem.source],
        [*map(to_text, (sample.prompt, sample.tokens, sample.logprobs))],
        [sample.text, sample.finish, sample.weight_version, [*map(packed_turn, sample.turns)]],
        [grade.reward, grade.correct, grade.reason, grade.answer, *grade.rewards],
        [dict(response.columns), grade.feedback, response.turn_rewards],
    ]


def _unpacked(stored: list[Any], prompts: dict[str, array[int]]) -> Response:
    (number, group, reward), problem, (prompt, tokens, logprobs), rest, grade, more = stored
    sample = Sample(
        prompts.setdefault(prompt, from_text("i", prompt)),
        from_text("i", tokens),
        from_text("f", logprobs),
        *rest[:3],
        turns=[*map(unpacked_turn, rest[3])],
    )
    columns, feedback, by_turn = more
    graded = Graded(*grade[:4], rewards=tuple(grade[4:]), feedback=feedback)
    problem = Problem(*problem)
    return Response(number, group, problem, sample, graded, reward, columns, tuple(by_turn))


class Pipeline:
    """Collects rollouts ahead of the steps that train on them, and writes each to disk.

    A context manager: it waits for the rollout that is being sampled, unless an error ends it.

    Args:
        collector: samples and grades a step's rollout with the sampler's present weights.
        journal: the rollouts on disk.
        depth: steps ahead; 0 = none.
        steps: of the whole run; no rollout is sampled for later steps.

    Attributes:
        collector: as given; another one may take its place before the first step.
    """

    def __init__(self, collector: Collector, journal: Journal, depth: int, steps: int) -> None:
        self.collector = collector
        self._journal = journal
        self._depth = depth
        self._steps = steps
        self._ready: dict[int, Rollout] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is not None and kind is None:
            self._thread.join()

    def take(self, step: int) -> Rollout:
        """The step's rollout. Sampling of the one `depth` steps later starts in a thread."""
        for ahead in range(step, min(step + max(self._depth, 1), self._steps)):
            self._obtain(ahead)
        following = step + self._depth
        if self._depth and following < self._steps:
            self._thread = threading.Thread(
                target=self._obtain_apart, args=(following,), name="sampling", daemon=True
            )
            self._thread.start()
        return self._ready.pop(step)

    def settle(self) -> None:
        """Wait until nothing is being sampled, so that the sampler's weights may change.

        Raises:
            Exception: the error that stopped the sampling.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def pending(self) -> list[int]:
        """The steps whose rollouts are ready."""
        return sorted(self._ready)

    def _obtain_apart(self, step: int) -> None:
        try:
            self._obtain(step)
        except BaseException as error:
            self._error = error

    def _obtain(self, step: int) -> None:
        """Get a step's rollout from the disk, or else from the sampler."""
        if step in self._ready:
            return
        rollout = self._journal.read(step)
        if rollout is None:
            rollout = self.collector.collect(step)
            start = time.perf_counter()
            self._journal.write(step, rollout)
            rollout.seconds["write"] = time.perf_counter() - start
        self.collector.stream.restore(rollout.stream)
        self._ready[step] = rollout


class Synchronizer:
    """Pushes weights and checks what the sampler holds.

    Args:
        sampler: receives the weights. If it has a method `live`, the weights that it computes with
            are checked, too.
        weights: returns the policy's weights of this moment; every rank iterates over all of them.
        exact: the sampler computes with exactly the weights that it received.
    """

    def __init__(
        self,
        sampler: Sampler,
        weights: Callable[[], Iterable[tuple[str, Tensor]]],
        *,
        exact: bool = True,
    ) -> None:
        self._sampler = sampler
        self._weights = weights
        self._exact = exact
        self._sent = Sent(())
        self._version = -1
        self._held: Held | None = None

    def push(self, version: int) -> None:
        """Give the sampler the policy's weights.

        Raises:
            RunError: it does not hold them afterwards.
        """
        sent = Sent(self._weights(), self._sampler.dtype)
        try:
            self._sampler.sync(sent, version)
        finally:
            sent.drain()
        self._sent, self._version = sent, version
        self.check()

    def check(self) -> None:
        """Does the sampler still hold, and compute with, what was sent last?

        Raises:
            RunError: it does not.
        """
        compare(self._sent.digests, self._version, self._sampler.received())
        live: Callable[[], Live] | None = getattr(self._sampler, "live", None)
        if live is None:
            return
        now = Held(self._version, self._sent.digests, live())
        compare_live(now, self._held, exact=self._exact)
        self._held = now


def write_samples(
    run: RunFolder, step: int, rollout: Rollout, comm: ProcessGroup, names: Sequence[str] = ()
) -> None:
    """Write the sample table of all ranks: one row per response, with its problem, text and grade.

    Each of several rewards has a column, such as `reward_format`; `names` are their names. With
    several sources, the column `source` has their labels. `response` is the last message of a
    conversation, and the column `conversation` has all turns, as JSON.
    """
    responses = [*rollout.responses, *rollout.dead]
    columns = {
        "id": [r.id for r in responses],
        "group": [r.group for r in responses],
        "problem": [r.problem.id for r in responses],
        "prompt": [r.problem.prompt for r in responses],
        "answer": [r.problem.answer for r in responses],
        "source": [r.problem.source for r in responses],
        "response": [r.sample.text for r in responses],
        "conversation": [
            json.dumps([*map(described, r.sample.turns)]) if r.sample.turns else None
            for r in responses
        ],
        "graded_answer": [r.grade.answer for r in responses],
        "correct": [r.grade.correct for r in responses],
        "reason": [r.grade.reason for r in responses],
        "reward": [r.reward for r in responses],
        **{
            f"reward_{name}": [r.grade.rewards[k] for r in responses]
            for k, name in enumerate(names)
        },
        "length": [len(r.sample.tokens) for r in responses],
        "finish": [r.sample.finish for r in responses],
        "weight_version": [r.sample.weight_version for r in responses],
        "kept": [i < len(rollout.responses) for i in range(len(responses))],
    }
    parts = comm.gather(columns)
    if not comm.rank:
        whole = {key: [value for part in parts for value in part[key]] for key in columns}
        for name in ("source", "conversation"):
            if not any(whole[name]):
                del whole[name]
        run.write_table(f"samples/{step_name(step)}.parquet", whole)
