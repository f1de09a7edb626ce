"""The training loop.

collect a rollout -> score it -> advantages -> observe -> for each phase and mini-batch: update
-> sync the sampler -> evaluate, write, checkpoint
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlobj.config import RunConfig
from rlobj.data import ProblemStream
from rlobj.errors import RlobjError, RunError
from rlobj.evaluation import Evaluation, evaluate
from rlobj.plan import Plan
from rlobj.samplers import TransformersSampler
from rlobj.scoring import PolicyScorer
from rlobj.tokens import TokenBatch
from rlobj.training import setup
from rlobj.training.clock import Clock
from rlobj.training.learner import Learner, Witness
from rlobj.training.metrics import rollout_metrics
from rlobj.training.observer import Observer
from rlobj.training.policy import load_policy
from rlobj.training.records import write_samples, write_tokens
from rlobj.training.rollout import Collector, Rollout, derive_seed
from rlobj.training.run_directory import RunDirectory, load_state

__all__ = ["Summary", "Trainer", "train"]

logger = logging.getLogger(__name__)


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
    with Trainer(config, out, resume, observer or Observer()) as trainer:
        for step in range(trainer.step, config.training.steps):
            with _failures_explained(step):
                trainer.run_step(step)
        run = trainer.run
    return Summary(run.path, config.training.steps, time.perf_counter() - start, run.lines())


class Trainer:
    """Everything that a step needs, opened once and closed at the end."""

    def __init__(
        self, config: RunConfig, out: Path | str, resume: bool, observer: Observer
    ) -> None:
        self.config = config
        self.observer = observer
        self.objective = config.resolved_objective()
        self.run = RunDirectory(out)
        self.step = 0
        self.idle_steps = 0
        self._resume = resume
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Trainer:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self) -> None:
        """Load everything; the run's folder appears only once all of it is there."""
        config = self.config
        accelerator, autocast = setup.hardware(config)
        if not self._resume:
            self.run.refuse_if_taken()
        train_problems, self.problems, note = setup.problems(config)
        source = setup.model_source(config, self.observer)
        checkpoint = self.run.latest() if self._resume else None
        weights = source if checkpoint is None else str(checkpoint / "model")
        self.policy = load_policy(config.model, config.data, weights)
        self.policy.model.to(accelerator.device).train()  # dropout is off; checkpointing needs it
        if config.training.gradient_checkpointing:
            self.policy.recompute_activations()
        limit = setup.prompt_limit(config, self.policy)
        train_problems = setup.short_enough(train_problems, self.policy, limit, "training")
        self.problems = setup.short_enough(self.problems, self.policy, limit, "held-out")
        self.stream = ProblemStream(train_problems, seed=config.seed)
        self.learner = Learner(
            config,
            self.objective,
            accelerator,
            PolicyScorer(self.policy.model),
            setup.reference(config, self.objective, source, accelerator.device),
            autocast,
        )
        self.comm = self.learner.comm
        self.sampler = TransformersSampler(
            self.policy.model,
            self.policy.tokenizer,
            batch_tokens=config.sampling.batch_tokens,
            autocast=autocast,
        )
        self._stack.callback(self.sampler.close)
        self.grader = self._stack.enter_context(config.rewards.open())
        self.collector = Collector(
            config, self.policy, self.sampler, self.grader, self.stream, self.comm
        )
        if not self._resume:
            self.run.create(config)
        self._stack.enter_context(self.run.locked())
        self._restore(checkpoint)
        self.observer.started(self._facts(note))
        if self.step == 0 and config.evaluation.every:
            self._write({"step": 0, **self._evaluate(0)})

    # One step.

    def run_step(self, step: int) -> None:
        """One rollout with all its updates, then everything that is due."""
        config, learner, clock = self.config, self.learner, Clock(self.observer)
        rate = learner.set_learning_rate(step)
        clock.start("sampling")
        rollout = self.collector.collect(step)
        metrics: dict[str, Any] = {"step": step + 1, **rollout_metrics(rollout, self.comm)}
        if metrics["reward/groups"] > 0:
            clock.start("scoring")
            table = rollout.table(self.learner.accelerator.device)
            table = learner.score(table, rollout.sequences)
            [table] = self.objective.with_advantages([table], self.comm)
            learner.observe(table)
            metrics.update(learner.sampler_gap(table))
            clock.start("updating")
            metrics.update(self._updates(step, table, rollout))
            clock.start("syncing")
            self.sampler.sync(self.policy.model, step + 1)
        self._count_idle(step, metrics)
        metrics["train/learning_rate"] = rate
        if self._due(step, config.output.samples_every):
            write_samples(self.run, step + 1, rollout)
        if self._due(step, config.evaluation.every) or step + 1 == config.training.steps:
            clock.start("evaluating")
            metrics.update(self._evaluate(step + 1))
        metrics.update(clock.stop(rollout, metrics["tokens/sampled"]))
        self._write(metrics)
        self.observer.stepped(step + 1, metrics)
        if self._due(step, config.checkpoint.every) or step + 1 == config.training.steps:
            self._save(step + 1)

    def _updates(self, step: int, table: TokenBatch, rollout: Rollout) -> dict[str, float]:
        """Phases outermost, mini-batches of whole groups inside; metrics averaged over updates."""
        every: list[dict[str, float]] = []
        all_sequences = rollout.sequences
        for phase in self.objective.phases:
            for members in mini_batches(rollout, self.config.training.updates_per_step):
                sequences = [all_sequences[i] for i in members]
                batch = table.select(members) if len(members) < len(table.lengths) else table
                first = not every
                shown = first and self._due(step, self.config.output.tokens_every)
                witness = self._token_writer(step, rollout, members) if shown else None
                every.append(
                    self.learner.update(phase, batch, sequences, stale=not first, witness=witness)
                )
        names = dict.fromkeys(name for metrics in every for name in metrics)
        return {name: _average(name, every) for name in names}

    # What is due after a step.

    def _due(self, step: int, every: int) -> bool:
        return every > 0 and (step + 1) % every == 0

    def _evaluate(self, step: int) -> dict[str, float]:
        """Held-out accuracy; {} where there are no test problems."""
        evaluation = self.config.evaluation
        if not self.problems or not evaluation.every:
            return {}
        self.observer.phase("evaluating")
        settings = self.config.sampling.settings(
            temperature=evaluation.temperature, top_p=evaluation.top_p, top_k=0, min_p=0.0
        )
        result: Evaluation = evaluate(
            self.sampler,
            self.policy.encode,
            self.problems,
            self.grader,
            settings,
            count=evaluation.samples,
            seed=derive_seed(self.config.seed, "evaluation"),
        )
        self.observer.evaluated(step, result)
        return result.metrics()

    def _write(self, metrics: dict[str, Any]) -> None:
        if self.comm.rank == 0:
            self.run.append(metrics)

    def _token_writer(self, step: int, rollout: Rollout, members: Sequence[int]) -> Witness:
        """Writes the token table of the first responses of an update."""

        def write(tables: list[TokenBatch], parts: list[list[int]], plan: Plan) -> None:
            missing, shown = self.config.output.token_responses, []
            for table, part in zip(tables, parts, strict=True):
                few = [rollout.responses[members[i]] for i in part[:missing]]
                missing -= len(few)
                shown.append((table, plan, few))
            write_tokens(self.run, step + 1, shown, self.policy.tokenizer)

        return write

    def _count_idle(self, step: int, metrics: dict[str, Any]) -> None:
        """Say when a step changed nothing, and stop after too many of them.

        Raises:
            RunError: `training.max_skipped` steps in a row without an update.
        """
        updates = self.config.training.updates_per_step * len(self.objective.phases)
        skipped = metrics.setdefault("train/skipped_updates", float(updates))
        if metrics["reward/groups"] and skipped < updates:
            self.idle_steps = 0
            return
        self.idle_steps += 1
        reasons = ", ".join(f"{n} {why}" for why, n in self.grader.undecided.items()) or "none"
        facts = (
            f"step {step + 1} had nothing to train on: {metrics['reward/groups']:.0f} groups kept, "
            f"{metrics['sampling/dead_groups']:.0f} without signal, "
            f"{metrics['reward/undecided']:.0f} responses undecided (so far: {reasons})"
        )
        logger.warning(facts)
        if self.idle_steps >= self.config.training.max_skipped:
            raise RunError(
                f"{self.idle_steps} steps in a row without an update; {facts}. Look at the rewards "
                f"in {self.run.path / 'samples'}; sampling.dynamic.by=reward keeps every group "
                "whose rewards differ."
            )

    def _save(self, step: int) -> None:
        state = {
            "step": step,
            "objective": self.learner.state,
            "stream": self.stream.state(),
            "skipped_in_a_row": self.learner.skipped_in_a_row,
            "idle_steps": self.idle_steps,
        }
        path = self.run.save(
            step,
            state,
            self.learner.optimizer,
            self.policy.save,
            keep=self.config.checkpoint.keep,
        )
        self.observer.saved(path)

    def _restore(self, checkpoint: Path | None) -> None:
        """Go on from a checkpoint; forget what a run left behind past it."""
        if checkpoint is not None:
            state = load_state(checkpoint, self.learner.optimizer)
            self.step = state["step"]
            self.idle_steps = state["idle_steps"]
            self.learner.state = state["objective"]
            self.learner.skipped_in_a_row = state["skipped_in_a_row"]
            self.stream.restore(state["stream"])
            self.sampler.sync(self.policy.model, self.step)
        self.run.truncate(self.step if checkpoint is not None else -1)

    def _facts(self, note: str) -> dict[str, str]:
        learner, model = self.learner, self.policy.model
        parameters = sum(p.numel() for p in model.parameters())
        device = str(learner.accelerator.device)
        threads = f", {torch.get_num_threads()} thread(s)" if device == "cpu" else ""
        arithmetic = "float32" if learner.autocast is None else "bfloat16"
        return {
            "policy": f"{self.config.model.name or 'embedded'}, {parameters:,} parameters",
            "problems": f"{len(self.stream)} to train on, {len(self.problems)} held out{note}",
            "device": f"{device}, {arithmetic}{threads}",
            "reference": "loaded" if learner.reference else "not needed",
            "run": str(self.run.path),
        }


@contextlib.contextmanager
def _failures_explained(step: int) -> Iterator[None]:
    """Once steps are being made, the input was right: whatever stops them is a RunError."""
    try:
        yield
    except RunError:
        raise
    except RlobjError as error:
        raise RunError(f"step {step + 1} failed: {error}") from error
    except OSError as error:
        raise RunError(f"step {step + 1} could not be written: {error}") from error
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"step {step + 1} ran out of GPU memory: {error}\nLower training.micro_batch_tokens or "
            "sampling.batch_tokens, or set training.gradient_checkpointing=true; none of them "
            "changes results."
        ) from error


def mini_batches(rollout: Rollout, updates: int) -> list[list[int]]:
    """The rollout's responses in `updates` parts of whole groups, as equal as they can be."""
    groups: dict[int, list[int]] = {}
    for i, response in enumerate(rollout.responses):
        groups.setdefault(response.group, []).append(i)
    members = list(groups.values())
    size, extra = divmod(len(members), updates)
    parts, start = [], 0
    for u in range(updates):
        stop = start + size + (u < extra)
        parts.append([i for group in members[start:stop] for i in group])
        start = stop
    return [part for part in parts if part]


def _average(name: str, every: Sequence[dict[str, float]]) -> float:
    values = [metrics[name] for metrics in every if name in metrics]
    if name in ("train/skipped_updates", "objective/dropped_tokens", "time/planning"):
        return sum(values)
    return max(values) if name.endswith("_max") else sum(values) / len(values)
