"""Opening a run: from its configuration, and the parts that a caller hands in, to `Parts`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from rlobj.base.errors import counted
from rlobj.base.files import nearby, refuse_links
from rlobj.config.resuming import changed, recorded, refuse_changes, rollout_key
from rlobj.config.run_config import RunConfig, settings_of
from rlobj.config.run_folder import REWARD_FILE, RunFolder, is_run, read_settings
from rlobj.config.starting import doubts, refuse_unknown_accuracy
from rlobj.data import ProblemStream
from rlobj.ranks import ProcessGroup, together
from rlobj.scoring import PolicyScorer
from rlobj.training.loop import setup, stages
from rlobj.training.loop.callbacks import Callback
from rlobj.training.loop.clock import Clock
from rlobj.training.loop.given import Given
from rlobj.training.loop.learner import Learner
from rlobj.training.loop.parts import Parts
from rlobj.training.loop.setup import InitialPolicy
from rlobj.training.memory import check_card
from rlobj.training.storage import checkpoint
from rlobj.training.storage.trackers import open_trackers, require_trackers

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def open_parts(
    config: RunConfig,
    out: Path | str,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    given: Given = Given(),  # noqa: B008
) -> Iterator[Parts]:
    """The parts of a run, ready for `run_step`; closed at the end of the `with` block.

    The arguments are those of `run_training`.

    Raises:
        ConfigError: the input was wrong; nothing was written.
        RunError: a part cannot be opened.
    """
    with ExitStack() as stack:
        parallel, autocast = setup.hardware(config)
        stack.callback(parallel.close)
        comm = parallel.comm
        with together(comm, "estimating the memory"):
            given_model = None if given.policy is None else given.policy.model
            check_card(config, parallel.strategy, parallel.size, given_model)
        run = _open_folder(config, out, resume, comm, stack)
        with together(comm, "loading the problems"):
            train, test, note = setup.problems(config, given)
            if config.model.name is None and given.policy is None:
                setup.require_readable(config, train, test)
        with together(comm, "checking the reward"):
            grader = stack.enter_context(given.grader or config.rewards.open())
            grader.check([*train, *test])
            refuse_unknown_accuracy(config, grader.says_right)
        initial = InitialPolicy(config, given.policy, parallel, callbacks, stack)
        newest = _newest(run, comm) if resume else None
        objective = config.resolved_objective()
        with together(comm, "loading the model"):
            policy = initial.trained(newest)
            size = _size(policy.model)
            train, test = setup.fitting(config, policy, train, test)
            reference = initial.reference(objective)
            stream = ProblemStream(train, seed=config.seed)
            scorer = PolicyScorer(policy.model, config.training.packed)
        clock = Clock(callbacks, parallel.device)
        learner = Learner(config, objective, parallel, scorer, reference, autocast, clock)
        learner.judge = setup.judge(config, given, policy.tokenizer)
        sampler = given.sampler
        if sampler is None:
            with together(comm, "opening the sampler"):
                sampler = setup.sampler(config, policy, parallel, initial, run)
            stack.callback(sampler.close)
        parts = Parts(
            config, callbacks, parallel, policy, learner, stream, test, sampler, grader, run
        )
        stack.enter_context(parts.pipeline)
        changes = _prepare_folder(parts, newest, resume, stack)
        stack.callback(parts.recorder.close)
        with together(comm, "opening the trackers"):
            trackers = open_trackers(parallel.accelerator, config, run.path, learner.steps)
            parts.trackers = trackers
        stack.callback(parts.trackers.close)
        facts = {
            f"from step {learner.steps + 1}": f"{path} {before} → {now}"
            for path, (before, now) in changes.items()
        }
        _start(parts, _facts(parts, given, size, note) | facts)
        yield parts


def _open_folder(
    config: RunConfig, out: Path | str, resume: bool, comm: ProcessGroup, stack: ExitStack
) -> RunFolder:
    """The run directory; one to resume is locked, a new one is not created yet."""
    run = RunFolder(comm.broadcast(str(out)))
    require_trackers(config.output.trackers)
    with together(comm, "opening the run"):
        if not resume:
            run.refuse_if_taken()
        elif comm.rank == 0:
            if is_run(run.path):
                refuse_links(run.path)
            stack.enter_context(run.locked())
            refuse_changes(run.path, changed(read_settings(run.path), settings_of(config)))
    return run


def _newest(run: RunFolder, comm: ProcessGroup) -> Path | None:
    """The checkpoint to continue from, the same on all ranks; None before the first."""
    found: Path | None = None
    with together(comm, "reading the checkpoint"):
        if comm.rank == 0:
            found = checkpoint.newest_sound(run, set_aside=True)
    return comm.broadcast(found)


def _prepare_folder(
    parts: Parts, newest: Path | None, resume: bool, stack: ExitStack
) -> dict[str, tuple[Any, Any]]:
    """Create a new run's folder, or continue from a checkpoint and delete what came after it.

    The rollouts of later steps stay: they are trained on again.

    Returns:
        The settings that were changed (before, now); on the first rank.
    """
    learner, rank, changes, key = parts.learner, parts.comm.rank, {}, ""
    initial = None if parts.config.origin is None else parts.config.model.name
    parts.config = parts.run.adopted(parts.config)
    settings = settings_of(parts.config)
    stored = None
    if newest is not None:
        state = checkpoint.read_state(newest)
        stored, key = state.settings, state.key
        learner.steps = parts.saved = state.step
        learner.state = state.objective
        parts.skips.restore(state.failures)
        parts.recorder.state = dict(state.records)
        parts.stream.restore(state.stream)
        checkpoint.restore_optimizer(newest, parts.parallel, parts.policy.model)
        checkpoint.restore_random(newest, rank)
    old, key = key, rollout_key(settings, str(learner.autocast), learner.steps, key)
    parts.journal.since, parts.journal.key = learner.steps, key
    with together(parts.comm, "preparing the run's folder"):
        if rank == 0 and not resume:
            parts.run.create(parts.config, initial=initial)
            stack.enter_context(parts.run.locked())
        elif rank == 0:
            before = stored or read_settings(parts.run.path)
            changes = recorded(changed(before, settings))
            if old:
                same = rollout_key(before, "", 0, "").split()[0]  # with the files of today
                if same != old.split()[0]:
                    changes[REWARD_FILE] = (old.split()[0], same)
            parts.run.write_config(parts.config)
            parts.run.truncate(learner.steps if newest is not None else -1)
            for line in parts.run.lines():
                parts.watch.add(line)
            if newest is not None:
                parts.journal.copy_from(newest / "rollouts")
        if rank == 0:
            parts.run.add_session(learner.steps, changes)
    return changes


def _start(parts: Parts, facts: dict[str, str]) -> None:
    """Give the sampler its first weights, and evaluate the policy before the first step."""
    config = parts.config
    for doubt in doubts(config):
        logger.warning(doubt)
    stages.sync(parts)
    for callback in parts.callbacks:
        callback.started(facts)
    evaluated = parts.comm.broadcast(bool(parts.run.lines()))
    if parts.learner.steps == 0 and config.evaluation.every and not evaluated:
        parts.metrics = {"step": 0}
        stages.evaluate(parts)
        stages.write_metrics(parts)
    parts.learner.clock.restart()


def _facts(parts: Parts, given: Given, size: str, note: str) -> dict[str, str]:
    """What the run works with, in short texts by name."""
    config, parallel, learner = parts.config, parts.parallel, parts.learner
    name = config.model.name or "embedded"
    if given.policy is not None:
        name = given.policy.source or "given"
    device, depth = parallel.device.type, config.sampling.async_depth
    threads = f", {counted(torch.get_num_threads(), 'thread')}" if device == "cpu" else ""
    alone = parallel.size == 1 and parallel.strategy == "ddp"
    ranks = "" if alone else f", {parallel.size} process(es), {parallel.strategy}"
    arithmetic = "float32" if learner.autocast is None else "bfloat16"
    held_out = f"{len(parts.test_problems)} held out{note}"
    return {
        "policy": f"{name}, {size}",
        "problems": f"{len(parts.stream)} to train on, {held_out}",
        "device": f"{device}, {arithmetic}{threads}{ranks}",
        "sampler": config.sampling.engine + (f", {counted(depth, 'step')} ahead" if depth else ""),
        "reference": "loaded" if learner.reference else "not needed",
        "run": str(nearby(parts.run.path)),
    }


def _size(model: Any) -> str:
    """The number of parameters in words; adapters are counted apart."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters()) - trained
    adapters = f" and {trained:,} in adapters, which are trained" if frozen else ""
    return f"{frozen or trained:,} parameters{adapters}"
