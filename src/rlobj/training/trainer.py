"""The training loop.

collect a rollout -> score it -> advantages -> observe -> for each phase and mini-batch: update
-> sync the sampler -> evaluate, write, checkpoint
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlobj.config import RunConfig
from rlobj.errors import RunError
from rlobj.evaluation import Answered, Evaluation, evaluate, problem_seeds
from rlobj.plan import Plan
from rlobj.samplers import Sample, derive_seed
from rlobj.tokens import TokenBatch
from rlobj.training.agreement import RankFailed, together
from rlobj.training.clock import Clock
from rlobj.training.failures import explained
from rlobj.training.interrupts import Interrupts
from rlobj.training.learner import SKIPPED, Witness
from rlobj.training.metrics import rollout_metrics
from rlobj.training.mini_batches import average, mini_batches
from rlobj.training.observer import Observer
from rlobj.training.records import write_samples, write_tokens
from rlobj.training.rollout import Rollout
from rlobj.training.session import Session
from rlobj.training.synchronizer import SamplerGap

__all__ = ["Summary", "Trainer", "train"]

PROBE_PROMPTS, PROBE_TOKENS = 4, 16
"""Samples that are compared after each sync where rollouts are too old to be: per rank."""


@dataclass(frozen=True)
class Summary:
    """What a run came to.

    Attributes:
        path: the run directory.
        steps: steps done in all.
        seconds: wall time of this process's part.
        history: the lines of metrics.jsonl.
    """

    path: Path
    steps: int
    seconds: float
    history: list[dict[str, Any]]


def train(
    config: RunConfig, out: Path | str, *, resume: bool = False, observer: Observer | None = None
) -> Summary:
    """Run the configuration to its last step.

    On SIGTERM or Ctrl-C the step is finished and saved, and the summary has fewer steps.

    Args:
        config: the run.
        out: the run directory; new, or with `resume` the run to continue.
        resume: continue from the newest checkpoint (or the start, before the first).
        observer: told of everything.

    Raises:
        ConfigError: the input was wrong; nothing was done.
        RunError: the work failed; `resume` continues from the last checkpoint.
    """
    start = time.perf_counter()
    opened = Trainer(config, out, resume, observer or Observer())
    with Interrupts() as interrupts, opened as trainer:
        interrupts.defer()
        while trainer.step < config.training.steps:
            with explained(trainer.step):
                trainer.run_step(trainer.step)
                if interrupts.agreed(trainer.comm):
                    trainer.save()
                    break
        run, steps = trainer.run, trainer.step
    return Summary(run.path, steps, time.perf_counter() - start, run.lines())


class Trainer(Session):
    """The loop over what a session has opened."""

    def _open(self) -> None:
        super()._open()
        self._sync(self.step)
        self.observer.started(self.facts())
        before = self.comm.broadcast(bool(self.run.lines()))
        if self.step == 0 and self.config.evaluation.every and not before:
            self._write({"step": 0, **self._evaluate(0)})

    # One step.

    def run_step(self, step: int) -> None:
        """One rollout with all its updates, then everything that is due."""
        config, clock = self.config, Clock(self.observer)
        rate = self.learner.set_learning_rate(step)
        clock.start("sampling")
        rollout = self._sampled(step)
        metrics: dict[str, Any] = {"step": step + 1, **rollout_metrics(rollout, self.comm)}
        try:
            metrics.update(self._trained(step, rollout, metrics["reward/groups"] > 0, clock))
        except SamplerGap:
            if self.comm.rank == 0:
                self.journal.drop(step)
            raise
        self.step = step + 1
        self._count_idle(step, metrics)
        metrics["train/learning_rate"] = rate
        if self._due(step, config.output.samples_every):
            write_samples(self.run, step + 1, rollout, self.comm)
        try:
            metrics.update(self._synced(step, clock))
        except RankFailed:
            raise
        except RunError:  # the sampler is lost, the step is not
            self._write({**metrics, **clock.stop(rollout, metrics["tokens/sampled"])})
            self.save()
            raise
        metrics.update(clock.stop(rollout, metrics["tokens/sampled"]))
        self._write(metrics)
        self.observer.stepped(step + 1, metrics)
        if self._due(step, config.checkpoint.every) or step + 1 == config.training.steps:
            self.save()
        elif not config.checkpoint.every and self.comm.rank == 0:
            self.journal.forget(before=step + 1)  # no checkpoint will make them history

    def _sampled(self, step: int) -> Rollout:
        """The step's rollout, from a sampler that holds the weights it was given.

        Raises:
            RunError: the sampler is lost; what was trained so far is saved first.
        """
        try:
            with together(self.comm, "checking the sampler"):
                self.synchronizer.check()
            rollout = self.pipeline.take(step)
            if not self.config.sampling.async_depth:
                self.sampler.sleep()
            return rollout
        except RankFailed:
            raise
        except RunError:
            self.save()
            raise

    def _trained(self, step: int, rollout: Rollout, live: bool, clock: Clock) -> dict[str, float]:
        """The updates on a rollout; on one without live groups, a look at its samples alone."""
        clock.start("scoring")
        fresh = not self.config.sampling.async_depth
        if not live:
            few = [response.sample for response in rollout.dead[:PROBE_PROMPTS]]
            return self._gap(few, fresh)
        table = rollout.table(self.parallel.device)
        table = self.learner.score(table, rollout.sequences)
        return self._updates(step, table, rollout, clock)

    def _synced(self, step: int, clock: Clock) -> dict[str, float]:
        """The new weights into the sampler, and the evaluation that is due."""
        clock.start("syncing")
        self.pipeline.settle()
        self._sync(step + 1)
        last = step + 1 == self.config.training.steps
        if not (last or self._due(step, self.config.evaluation.every)):
            return {}
        clock.start("evaluating")
        return self._evaluate(step + 1)

    def _updates(
        self, step: int, table: TokenBatch, rollout: Rollout, clock: Clock
    ) -> dict[str, float]:
        """Phases outermost, mini-batches of whole groups inside; metrics averaged over updates."""
        learner, all_sequences = self.learner, rollout.sequences
        updates = self.config.training.updates_per_step
        if not learner.finite(table):
            self.failures.skipped(step, 0, table, all_sequences)
            return dict(SKIPPED)
        [table] = self.objective.with_advantages([table], self.comm)
        learner.observe(table)
        gap = learner.sampler_gap(table)
        clock.start("updating")
        every: list[dict[str, float]] = []
        for phase in self.objective.phases:
            for members in mini_batches(rollout, updates, self.comm):
                sequences = [all_sequences[i] for i in members]
                batch = table.select(members) if len(members) < len(table.lengths) else table
                first = not every
                shown = first and self._due(step, self.config.output.tokens_every)
                witness = self._token_writer(step, rollout, members) if shown else None
                metrics = learner.update(phase, batch, sequences, stale=not first, witness=witness)
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
                seeds=problem_seeds(version, len(prompts)),
            )
        self._gap([sample for group in groups for sample in group], fresh=True)

    def _gap(self, samples: Sequence[Sample], fresh: bool) -> dict[str, float]:
        """The gap between sampler and trainer on some samples of each rank."""
        trainer = self.learner.logprobs([(s.prompt_ids, s.token_ids) for s in samples])
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
        self.observer.phase("evaluating")
        settings = self.config.sampling.settings(
            temperature=evaluation.temperature, top_p=evaluation.top_p, top_k=0, min_p=0.0
        )
        seed = derive_seed(self.config.seed, "evaluation")
        own: list[Answered] = []
        with together(comm, "evaluating"):
            part = evaluate(
                self.sampler,
                self.policy.encode,
                self.problems[comm.rank :: comm.size],
                self.grader,
                settings,
                count=evaluation.samples,
                seeds=problem_seeds(seed, len(self.problems))[comm.rank :: comm.size],
            )
            own = list(part.problems)
        parts = comm.gather(own)
        whole = [parts[i % comm.size][i // comm.size] for i in range(len(self.problems))]
        result = Evaluation(tuple(whole))
        self.observer.evaluated(step, result)
        return result.metrics()

    def _write(self, metrics: dict[str, Any]) -> None:
        with together(self.comm, "writing metrics.jsonl"):
            if self.comm.rank == 0:
                self.run.append(metrics)
        self.trackers.log(metrics, metrics["step"])

    def _token_writer(self, step: int, rollout: Rollout, members: Sequence[int]) -> Witness:
        """Writes the token table of the first responses of an update, some of every rank."""

        def write(tables: list[TokenBatch], parts: list[list[int]], plan: Plan) -> None:
            missing = -(-self.config.output.token_responses // self.comm.size)
            shown = []
            for table, part in zip(tables, parts, strict=True):
                few = [rollout.responses[members[i]] for i in part[:missing]]
                missing -= len(few)
                shown.append((table, plan, few))
            write_tokens(self.run, step + 1, shown, self.policy.tokenizer, self.comm)

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
