"""What a run works with: opened once, saved, gone on from, closed."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import Any, Self

import torch

from rlobj.config.presets import difference
from rlobj.config.resuming import refuse_changes
from rlobj.config.run_config import RunConfig, settings_of
from rlobj.data import ProblemStream
from rlobj.samplers import TransformersSampler
from rlobj.scoring import PolicyScorer
from rlobj.training.loop import setup
from rlobj.training.loop.callbacks import Callback
from rlobj.training.loop.clock import Clock
from rlobj.training.loop.failures import Failures
from rlobj.training.loop.given import Given
from rlobj.training.loop.initial_policy import InitialPolicy
from rlobj.training.loop.learner import Learner
from rlobj.training.parallel.agreement import together
from rlobj.training.parallel.environment import TIMEOUT
from rlobj.training.parallel.process_group import ProcessGroup
from rlobj.training.rollouts.collector import Collector
from rlobj.training.rollouts.journal import Journal
from rlobj.training.rollouts.pipeline import Pipeline
from rlobj.training.rollouts.synchronizer import Synchronizer
from rlobj.training.storage import checkpoint
from rlobj.training.storage.run_directory import RunDirectory, remove
from rlobj.training.storage.trackers import open_trackers, require_trackers

__all__ = ["Session"]

logger = logging.getLogger(__name__)


class Session:
    """Policy, learner, sampler, grader, files. A context manager; every rank has one.

    Args:
        config: the run.
        out: the run directory; the first rank's is everyone's.
        resume: go on from the newest checkpoint there.
        callback: receives the events of the run.
        given: parts that are used instead of what the configuration would open.
    """

    def __init__(
        self,
        config: RunConfig,
        out: Path | str,
        resume: bool,
        callback: Callback,
        given: Given = Given(),  # noqa: B008
    ) -> None:
        self.config = config
        self.callback = callback
        self.given = given
        self.objective = config.resolved_objective()
        self.step = 0
        self._out = out
        self._resume = resume
        self._saved = -1
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def _open(self) -> None:
        """Load everything; the run's folder appears only once all of it is there."""
        config = self.config
        self.parallel, autocast = setup.hardware(config)
        self._stack.callback(self.parallel.close)
        self.comm = self.parallel.comm
        self.run = RunDirectory(self.comm.broadcast(str(self._out)))
        require_trackers(config.output.trackers)
        with together(self.comm, "opening the run"):
            if self.comm.rank == 0 and self._resume:
                self._stack.enter_context(self.run.locked())
                stored = settings_of(RunDirectory.open(self.run.path)[1])
                changes = difference(stored, settings_of(config))
                refuse_changes(self.run.path, (path for path, _, _ in changes))
                self.run.write_config(config)
            if not self._resume:
                self.run.refuse_if_taken()
        with together(self.comm, "loading problems and model"):
            train_problems, self.problems, note = setup.problems(config, self.given)
        source = self._source()
        newest = self._newest()
        with together(self.comm, "loading problems and model"):
            initial = InitialPolicy(
                config, self.parallel.device, source, self.given.policy, self._stack
            )
            self.policy = initial.trained(newest)
            self._size = _size(self.policy.model)
            if config.model.name is None and self.given.policy is None:
                setup.require_readable(self.policy.template, train_problems)
                setup.require_readable(self.policy.test_template, self.problems)
            limit = setup.prompt_limit(config, self.policy)
            train_problems = setup.short_enough(
                train_problems, self.policy.encode, limit, "training"
            )
            self.problems = setup.short_enough(
                self.problems, self.policy.encode_test, limit, "held-out"
            )
            reference = setup.reference(config, self.objective, initial)
            self.stream = ProblemStream(train_problems, seed=config.seed)
            scorer = PolicyScorer(self.policy.model, config.training.packed)
        self.clock = Clock(self.callback, self.parallel.device)
        self.learner = Learner(
            config, self.objective, self.parallel, scorer, reference, autocast, self.clock
        )
        self._open_sampling(initial, autocast)
        if not self._resume:
            with together(self.comm, "creating the run's folder"):
                if self.comm.rank == 0:
                    self.run.create(config)
                    self._stack.enter_context(self.run.locked())
        self.failures = Failures(self.run, self.comm, config.training.max_skipped)
        self._restore(newest)
        with together(self.comm, "opening the trackers"):
            self.trackers = open_trackers(
                self.parallel.accelerator,
                config.output.trackers,
                self.run.path,
                settings_of(config),
                step=self.step,
            )
        self._stack.callback(self.trackers.close)
        self._note = note

    def _source(self) -> str:
        """The policy before training. Where it has to be made, one process a machine makes it."""
        source = ""
        if self.given.policy is not None:
            return self.given.policy.source
        for turn in (True, False):
            with together(self.comm, "making the embedded policy"):
                if turn == self.parallel.accelerator.is_local_main_process:
                    source = setup.model_source(self.config, self.callback)
        return source

    def _newest(self) -> Path | None:
        """The checkpoint to go on from, the same on all ranks."""
        if not self._resume:
            return None
        found: Path | None = None
        with together(self.comm, "reading the checkpoint"):
            if self.comm.rank == 0:
                found = checkpoint.newest_sound(self.run)
        return self.comm.broadcast(found)

    def _open_sampling(self, initial: InitialPolicy, autocast: torch.dtype | None) -> None:
        """The sampler, the grader, and what collects their rollouts."""
        config, depth = self.config, self.config.sampling.async_depth
        if self.given.sampler is not None:
            self.sampler = self.given.sampler
        else:
            self.sampler = setup.sampler(config, self.policy, self.parallel, initial, autocast)
            self._stack.callback(self.sampler.close)
        own_names = isinstance(self.sampler, TransformersSampler)
        self.synchronizer = Synchronizer(
            self.sampler,
            lambda: self.policy.weights(self.parallel.full, as_stored=not own_names),
        )
        self.grader = self._stack.enter_context(self.given.grader or config.rewards.open())
        # A thread of its own needs a process group of its own: exchanges must not cross.
        comm = _group_apart(self.comm) if depth else self.comm
        collector = Collector(config, self.policy, self.sampler, self.grader, self.stream, comm)
        self.journal = Journal(self.run, comm, self._recipe(autocast))
        self.pipeline = Pipeline(collector, self.journal, depth, config.training.steps)
        self._stack.enter_context(self.pipeline)
        if depth and self.objective.mismatch is None:
            logger.warning(
                "sampling.async_depth=%d without objective.mismatch: samples of older weights "
                "count as if they were new; {kind: truncate} corrects for it",
                depth,
            )

    def _recipe(self, autocast: torch.dtype | None) -> str:
        """What weights depend on, of that which a resumed run may have otherwise."""
        training = self.config.training
        steps = 0 if training.schedule == "constant" else training.steps
        return f"{steps} steps, {autocast}"

    # Checkpoints.

    def save(self) -> None:
        """A checkpoint of the steps done, unless there is one."""
        step = self.step
        if step in (0, self._saved):
            return
        state = {
            "step": step,
            "objective": self.learner.state,
            "stream": self.stream.state(),
            "failures": self.failures.state(),
            "strategy": self.parallel.strategy,
            "processes": self.comm.size,
        }
        ahead = self.pipeline.pending()

        def rollouts(place: Path) -> None:
            self.journal.copy_into(place / "rollouts", ahead)

        path = checkpoint.write(self.run, step, self.parallel, self.policy, state, rollouts)
        self._saved = step
        with together(self.comm, "removing old checkpoints"):
            if self.comm.rank == 0:
                for old in self.run.saved()[: -self.config.checkpoint.keep]:
                    remove(old)
                self.journal.forget(before=step)
        self.callback.saved(path)

    def _restore(self, newest: Path | None) -> None:
        """Go on from a checkpoint; forget what a run left behind past it, but its rollouts."""
        if newest is not None:
            state = checkpoint.read_state(newest)
            self.step = self._saved = state["step"]
            self.learner.state = state["objective"]
            self.failures.restore(state["failures"])
            self.stream.restore(state["stream"])
            checkpoint.restore_optimizer(newest, self.parallel, self.policy.model)
            checkpoint.restore_random(newest, self.comm.rank)
        self.journal.since = self.step
        with together(self.comm, "preparing the run's folder"):
            if self.comm.rank == 0 and self._resume:
                self.run.truncate(self.step if newest is not None else -1)
                if newest is not None:
                    self.journal.copy_from(newest / "rollouts")

    def facts(self) -> dict[str, str]:
        """What the run works with, in short texts by name."""
        learner, depth = self.learner, self.config.sampling.async_depth
        given = self.given.policy
        name = self.config.model.name or "embedded" if given is None else given.source or "given"
        device = self.parallel.device.type
        threads = f", {torch.get_num_threads()} thread(s)" if device == "cpu" else ""
        alone = self.comm.size == 1 and self.parallel.strategy == "ddp"
        ranks = "" if alone else f", {self.comm.size} process(es), {self.parallel.strategy}"
        arithmetic = "float32" if learner.autocast is None else "bfloat16"
        held_out = f"{len(self.problems)} held out{self._note}"
        return {
            "policy": f"{name}, {self._size}",
            "problems": f"{len(self.stream)} to train on, {held_out}",
            "device": f"{device}, {arithmetic}{threads}{ranks}",
            "sampler": self.config.sampling.engine + (f", {depth} step(s) ahead" if depth else ""),
            "reference": "loaded" if learner.reference else "not needed",
            "run": str(self.run.path),
        }


def _group_apart(comm: ProcessGroup) -> ProcessGroup:
    """The same ranks in a second process group, on the CPU."""
    if comm.size == 1:
        return comm
    group = torch.distributed.new_group(backend="gloo", timeout=TIMEOUT)
    return ProcessGroup(torch.device("cpu"), group)


def _size(model: torch.nn.Module) -> str:
    """How many parameters, in words; adapters apart."""
    frozen, trained = (
        sum(p.numel() for p in model.parameters() if p.requires_grad == wanted)
        for wanted in (False, True)
    )
    if not frozen:
        return f"{trained:,} parameters"
    return f"{frozen:,} parameters and {trained:,} in adapters, which are trained"
