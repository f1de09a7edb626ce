"""The training loop.

collect a rollout -> score it -> advantages -> observe -> for each phase and mini-batch: update
-> sync the sampler -> evaluate, write, checkpoint
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from rlobj.base.errors import RunError
from rlobj.config.run_config import RunConfig
from rlobj.evaluation import GradedBenchmark, GradedProblem, sample_and_grade, summarise
from rlobj.objectives.plan import Plan
from rlobj.objectives.tokens import TokenBatch
from rlobj.samplers import Sample, derive_seed
from rlobj.training.loop.callbacks import Callback, Callbacks
from rlobj.training.loop.failures import explained
from rlobj.training.loop.given import Given
from rlobj.training.loop.interrupts import Interrupts
from rlobj.training.loop.learner import SKIPPED, OnPlan, Sequences
from rlobj.training.loop.metrics import average, rollout_metrics
from rlobj.training.loop.session import Session
from rlobj.training.parallel.agreement import RankFailed, together
from rlobj.training.result import TrainingResult
from rlobj.training.rollouts.collector import Rollout
from rlobj.training.rollouts.sharding import Share, shard
from rlobj.training.rollouts.synchronizer import SamplerGap
from rlobj.training.storage.parquet import write_samples, write_tokens

__all__ = ["Trainer", "run_training"]

PROBE_PROMPTS, PROBE_TOKENS = 4, 16
"""Samples that are compared after each sync where rollouts are too old to be: per rank."""


def run_training(
    config: RunConfig,
    out: Path | str,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    given: Given = Given(),  # noqa: B008
) -> TrainingResult:
    """Run the configuration to its last step.

    On SIGTERM or Ctrl-C the step is finished and saved, and the result has fewer steps.

    Args:
        config: the run.
        out: the run directory; new, or with `resume` the run to continue.
        resume: continue from the newest checkpoint (or the start, before the first).
        callbacks: receive the events of the run.
        given: parts that are used instead of what the configuration would open.

    Raises:
        ConfigError: the input was wrong; nothing was done.
        RunError: the work failed; `resume` continues from the last checkpoint.
    """
    start = time.perf_counter()
    opened = Trainer(config, out, resume, Callbacks(callbacks), given)
    with Interrupts() as interrupts, opened as trainer:
        interrupts.defer()
        while trainer.step < config.training.steps:
            with explained(trainer.step):
                trainer.run_step(trainer.step)
                if interrupts.agreed(trainer.comm):
                    trainer.save()
                    break
        run, steps = trainer.run, trainer.step
    seconds = time.perf_counter() - start
    return TrainingResult(run.path, steps, seconds, run.lines(), given.policy)


class Trainer(Session):
    """The loop over what a session has opened."""

    def _open(self) -> None:
        super()._open()
        self._sync(self.step)
        self.callback.started(self.facts())
        before = self.comm.broadcast(bool(self.run.lines()))
        if self.step == 0 and self.config.evaluation.every and not before:
            self._write({"step": 0, **self._evaluate(0)})
        self.clock.restart()

    # One step.

    def run_step(self, step: int) -> None:
        """One rollout with all its updates, then everything that is due."""
        config, clock = self.config, self.clock
        rate = self.learner.set_learning_rate(step)
        clock.start("sampling")
        rollout = self._sampled(step)
        metrics: dict[str, Any] = {"step": step + 1, **rollout_metrics(rollout, self.comm)}
        try:
            metrics.update(self._trained(step, rollout, metrics["reward/groups"] > 0))
        except SamplerGap:
            if self.comm.rank == 0:
                self.journal.drop(step)
            raise
        self.step = step + 1
        self._count_idle(step, metrics)
        metrics |= {"train/learning_rate": rate, **self._beside(rollout)}
        metrics |= self.learner.tally.metrics(self.comm)
        if self._due(step, config.output.samples_every):
            with clock.inside("writing"):
                write_samples(self.run, step + 1, rollout, self.comm)
        with self._surviving(metrics):
            metrics.update(self._synced(step))
        metrics.update(clock.stop(metrics["tokens/sampled"]))
        self._write(metrics)
        self.callback.stepped(step + 1, metrics)
        if self._due(step, config.checkpoint.every) or step + 1 == config.training.steps:
            with clock.inside("writing"):
                self.save()
        elif not config.checkpoint.every and self.comm.rank == 0:
            self.journal.forget(before=step + 1)  # no checkpoint will make them history

    def _sampled(self, step: int) -> Rollout:
        """The step's rollout, from a sampler that holds the weights it was given.

        Raises:
            RunError: the sampler is lost; what was trained so far is saved first.
        """
        with self._surviving():
            with together(self.comm, "checking the sampler"):
                self.synchronizer.check()
            rollout = self.pipeline.take(step)
            if self.learner.fresh:
                self.sampler.sleep()
                self.clock.move("sampling", "grading", rollout.seconds["grade"])
                self.clock.move("sampling", "writing", rollout.seconds["write"])
        return rollout

    def _beside(self, rollout: Rollout) -> dict[str, float]:
        """Seconds that sampling and grading took beside other phases: no part of the step."""
        seconds = rollout.seconds
        ahead = not self.learner.fresh
        return {
            "time/sampling_hidden": seconds["sample"] if ahead else 0.0,
            "time/grading_hidden": seconds["hidden"] + (seconds["grade"] if ahead else 0.0),
        }

    @contextlib.contextmanager
    def _surviving(self, metrics: dict[str, Any] | None = None) -> Iterator[None]:
        """Where the sampler is lost, the steps are not: what was done is saved first.

        Args:
            metrics: of a step that is not written yet.
        """
        try:
            yield
        except RankFailed:
            raise
        except RunError:
            if metrics is not None:
                self._write({**metrics, **self.clock.stop(metrics["tokens/sampled"])})
            self.save()
            raise

    def _trained(self, step: int, rollout: Rollout, live: bool) -> dict[str, float]:
        """The updates on a rollout; on one without live groups, a look at its samples alone."""
        self.clock.start("scoring")
        if not live:
            few = [response.sample for response in rollout.dead[:PROBE_PROMPTS]]
            return self._gap(few, self.learner.fresh)
        training, device = self.config.training, self.parallel.device
        with self.clock.inside("other"):
            updates, balance = training.updates_per_step, training.balance
            share = shard(rollout, updates, self.comm, device, balance=balance)
        table = self.learner.score(share.table, share.sequences)
        return {**self._updates(step, table, share), "tokens/rank_balance": share.imbalance}

    def _synced(self, step: int) -> dict[str, float]:
        """The new weights into the sampler, and the evaluation that is due."""
        self.clock.start("syncing")
        with self.clock.inside("sampling"):
            self.pipeline.settle()
        self._sync(step + 1)
        last = step + 1 == self.config.training.steps
        if not (last or self._due(step, self.config.evaluation.every)):
            return {}
        self.clock.start("evaluating")
        return self._evaluate(step + 1)

    def _updates(self, step: int, table: TokenBatch, share: Share) -> dict[str, float]:
        """Phases outermost, mini-batches of whole groups inside; metrics averaged over updates."""
        learner = self.learner
        if not learner.finite(table):
            self.failures.skipped(step, 0, table, share.sequences)
            return dict(SKIPPED)
        with self.clock.inside("planning"):
            [table] = self.objective.with_advantages([table], self.comm)
            learner.observe(table)
        gap = learner.sampler_gap(table)
        self.clock.start("updating")
        every: list[dict[str, float]] = []
        batches, ends = table.split(share.sizes), [0, *itertools.accumulate(share.sizes)]
        for phase in self.objective.phases:
            for batch, (start, end) in zip(batches, itertools.pairwise(ends), strict=True):
                sequences = share.sequences[start:end]
                first = not every
                shown = first and self._due(step, self.config.output.tokens_every)
                on_plan = self._token_writer(step, sequences) if shown else None
                metrics = learner.update(phase, batch, sequences, stale=not first, on_plan=on_plan)
                if math.isnan(metrics["train/grad_norm"]):
                    self.failures.skipped(step, len(every), batch, sequences)
                else:
                    self.failures.updated()
                every.append(metrics)
        return {**average(every), **gap, "train/updates": float(len(every))}

    def _sync(self, version: int) -> None:
        """The policy's weights into the sampler, checked."""
        with together(self.comm, "syncing the sampler"):
            self.synchronizer.push(version)
        if not self.config.sampling.async_depth:
            return
        # Rollouts are too old to be compared with the policy: compare a few samples of its own.
        settings = self.config.sampling.settings()
        short = {"max_tokens": min(settings.max_tokens, PROBE_TOKENS)}
        with together(self.comm, "sampling"):
            prompts = [self.policy.encode(p) for p in self.stream.first(PROBE_PROMPTS)]
            groups = self.sampler.sample(
                prompts,
                count=1,
                settings=settings.model_copy(update=short),
                seeds=[derive_seed(version, "probe", index) for index in range(len(prompts))],
            )
        self._gap([sample for group in groups for sample in group], fresh=True)

    def _gap(self, samples: Sequence[Sample], fresh: bool) -> dict[str, float]:
        """The gap between sampler and trainer on some samples of each rank."""
        trainer = self.learner.logprobs([(s.prompt, s.tokens) for s in samples])
        sampler = torch.tensor([x for s in samples for x in s.logprobs])
        return self.learner.gap(trainer, sampler.to(trainer), fresh)

    # What is due after a step.

    def _due(self, step: int, every: int) -> bool:
        return every > 0 and (step + 1) % every == 0

    def _evaluate(self, step: int) -> dict[str, float]:
        """Held-out accuracy, the problems dealt out over ranks; {} without test problems."""
        evaluation, comm = self.config.evaluation, self.comm
        if not self.problems or not evaluation.every:
            return {}
        self.callback.phase("evaluating")
        settings = self.config.evaluation_settings()
        own: list[GradedProblem] = []
        with together(comm, "evaluating"):
            part = sample_and_grade(
                self.sampler,
                self.policy.encode_test,
                self.problems[comm.rank :: comm.size],
                self.grader,
                settings,
                count=evaluation.samples,
                seed=derive_seed(self.config.seed, "evaluation"),
            )
            own = list(part.problems)
        parts = comm.gather(own)
        whole = [parts[i % comm.size][i // comm.size] for i in range(len(self.problems))]
        result = summarise(GradedBenchmark("evaluation", tuple(whole)))
        self.callback.evaluated(step, result)
        return result.metrics()

    def _write(self, metrics: dict[str, Any]) -> None:
        with self.clock.inside("writing"), together(self.comm, "writing metrics.jsonl"):
            if self.comm.rank == 0:
                self.run.append(metrics)
        self.trackers.log(metrics, metrics["step"])

    def _token_writer(self, step: int, sequences: Sequences) -> OnPlan:
        """Writes the token table of the first responses of an update, some of every rank."""
        count = -(-self.config.output.token_responses // self.comm.size)
        shown = [response for _, response in sequences[:count]]

        def write(table: TokenBatch, plan: Plan) -> None:
            with self.clock.inside("writing"):
                write_tokens(
                    self.run, step + 1, table, plan, shown, self.policy.tokenizer, self.comm
                )

        return write

    def _count_idle(self, step: int, metrics: dict[str, Any]) -> None:
        """Say when a step changed nothing; too many of them are a RunError."""
        made = metrics.pop("train/updates", 0.0)
        skipped = metrics.setdefault("train/skipped_updates", 1.0)
        if skipped < made:
            self.failures.worked()
            return
        reasons = ", ".join(f"{n} {why}" for why, n in self.grader.undecided.items()) or "none"
        self.failures.idled(
            f"step {step + 1} changed nothing: {metrics['reward/groups']:.0f} groups kept, "
            f"{metrics['sampling/dead_groups']:.0f} without signal, "
            f"{metrics['reward/undecided']:.0f} responses undecided (so far: {reasons})"
        )
