"""Trainer: a run that is open, with the stages of a step around the training itself.

The stages: collect a rollout, sync the sampler, evaluate, write metrics, save a checkpoint.
Each stage adds its numbers to `Trainer.metrics` and its time to the learner's clock.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch

from rlobj.base.errors import RunError
from rlobj.base.files import remove
from rlobj.base.seeds import seed_generators
from rlobj.conversations.driving import Conversations
from rlobj.data import Problem, ProblemStream
from rlobj.data.problems import fingerprint
from rlobj.evaluation import GradedBenchmark, GradedProblem, sample_and_grade
from rlobj.insight.diagnosis import Finding, Watch
from rlobj.models.adapters import adapter_weights
from rlobj.models.policy import Policy
from rlobj.ranks import ProcessGroup, together
from rlobj.rewards import Grader
from rlobj.runs.checkpoints import best_checkpoint, checkpoints, held_out, read_state
from rlobj.runs.configuration import (
    HELD_OUT_PROBLEMS,
    OBJECTIVE_FILE,
    REWARD_FILE,
    TRAINING_PROBLEMS,
    read_settings,
)
from rlobj.runs.metrics import measure_of
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.recorder import Recorder, write_samples
from rlobj.runs.run_folder import RunFolder
from rlobj.samplers import Sampler, TransformersSampler, derive_seed
from rlobj.samplers.syncing import Synchronizer
from rlobj.samplers.types import WeightsLost
from rlobj.settings.resuming import changed, code_digest, recorded
from rlobj.settings.run_config import settings_of
from rlobj.settings.starting import doubts
from rlobj.settings.training import learning_rate
from rlobj.training import checkpoint
from rlobj.training.loop.callbacks import Callback
from rlobj.training.loop.learner import Learner, Metrics
from rlobj.training.loop.metrics import rollout_metrics
from rlobj.training.parallel import Parallel
from rlobj.training.rollouts.collector import Collector, Pipeline, Rollout, decouples
from rlobj.training.rollouts.continuous import Continuous
from rlobj.training.rollouts.sharding import MiniBatch
from rlobj.training.trackers import log_metrics

_PUSHES = 5
"""Pushes in a row after each of which the sampler is lost again, until the run stops."""

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass
class Trainer:
    """A run that is open. `open_run` opens it from its settings and the caller's objects.

    Attributes:
        callbacks: receive the events.
        policy: the model in training, and how problems become prompts.
        learner: trains the policy; counts the steps done.
        stream: the training problems in their endless order.
        test_problems: the held-out problems; none = no evaluation.
        sampler: draws responses.
        grader: grades them; open.
        run: the run directory.
        conversations: draws responses of several turns; None = a response is one turn.
        config: the run.
        parallel: the processes that share the run.
        comm: their process group.
        metrics: of the step in progress.
        saved: the step of the newest checkpoint; -1 = none.
        begun: findings of the last step that the step before did not have; on the first rank.
        position: of the stream, after the rollout of the last step done.
        initial: the model whose copy the folder of a new run gets; None = it needs none.
        digests: of code and problems, by the names of their changes.
        pipeline: the rollouts in the order of their steps; a context manager, to be entered.
        synchronizer: gives the sampler the policy's weights.
        failures: updates that were not finite, and steps without an update, each in a row.
        recorder: what updates did to tokens, in records/ and tables/.
        watch: checks the metrics of each step; on the first rank.
    """

    callbacks: Sequence[Callback]
    policy: Policy
    learner: Learner
    stream: ProblemStream
    test_problems: Sequence[Problem]
    sampler: Sampler
    grader: Grader
    run: RunFolder
    conversations: Conversations | None
    metrics: dict[str, Any] = field(default_factory=dict)
    saved: int = -1
    failures: Counter[str] = field(default_factory=Counter)
    begun: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.learner.config
        self.initial = None if config.origin is None else config.model.name
        self.config = self.learner.config = config = self.run.adopted(config)
        self.parallel: Parallel = self.learner.parallel
        depth = config.sampling.async_depth
        # Rollouts ahead are sampled in a thread; its exchanges need a process group of their own.
        self.comm = comm = self.parallel.comm
        if depth and comm.size > 1:
            timeout = timedelta(seconds=config.training.hang_timeout)
            group = torch.distributed.new_group(backend="gloo", timeout=timeout)
            comm = ProcessGroup("cpu", group)
        collector = Collector(
            config, self.policy, self.sampler, self.grader, self.stream, comm, self.conversations
        )
        self.position, self.digests = self.stream.state(), self._digests(settings_of(config))
        if config.sampling.continuous:
            self.pipeline = Continuous(collector)
        else:
            self.pipeline = Pipeline(collector, depth, config.training.steps)
        own_names = isinstance(self.sampler, TransformersSampler)
        full, alone = self.parallel.full, config.model.synced_rank > 0
        self.synchronizer = Synchronizer(
            self.sampler,
            lambda: self.policy.weights(full, as_stored=not own_names, merged=not alone),
            (lambda: adapter_weights(self.policy.model, full, scaled=True)) if alone else None,
            exact=config.sampling.max_logprob_gap == "auto",
        )
        self.watch = Watch(config)
        self.recorder = Recorder(self.run.path, config, self.policy.tokenizer, self.comm)

    def _digests(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Digests of what may be edited before the run is resumed, by the names of such changes."""
        return {
            REWARD_FILE: code_digest(settings, "rewards", "columns", "environment"),
            OBJECTIVE_FILE: code_digest(settings, "objective"),
            TRAINING_PROBLEMS: fingerprint(self.stream.first(len(self.stream))),
            HELD_OUT_PROBLEMS: fingerprint(self.test_problems),
        }

    def prepare_folder(
        self, newest: Path | None, resume: bool, stack: ExitStack
    ) -> dict[str, tuple[Any, Any]]:
        """Create a new run's folder, or continue from a checkpoint and delete what came after it.

        Returns:
            The settings that were changed (before, now); on the first rank.
        """
        learner, rank, changes = self.learner, self.comm.rank, {}
        settings = settings_of(self.config)
        state = None
        if newest is not None:
            state = read_state(newest)
            learner.steps = self.saved = state.step
            learner.state = state.objective
            self.failures.update(state.failures)
            self.stream.restore(state.stream)
            self.pipeline.restore(state.stream)
            self.position = self.stream.state()
            checkpoint.restore_optimizer(newest / "optimizer", self.parallel, self.policy.model)
            checkpoint.restore_scores(newest, learner.scores.lagged)
            if (critic := learner.critic) is not None:
                of_value = newest / "optimizer" / critic.name
                checkpoint.restore_optimizer(of_value, critic.parallel, critic.policy.model)
            checkpoint.restore_random(newest, rank)
        with together(self.comm, "preparing the run's folder"):
            if rank == 0 and not resume:
                stack.enter_context(self.run.locked())
                self.run.create(self.config, initial=self.initial)
            elif rank == 0:
                before = state.settings if state else read_settings(self.run.path)
                changes = recorded(changed(before, settings))
                now = self._digests(before)
                for name, digest in (state.digests if state else {}).items():
                    if now[name] not in (digest, ""):
                        changes[name] = (digest, now[name])
                self.run.write_config(self.config)
                self.run.truncate(learner.steps if newest is not None else -1)
                for line in self.run.lines():
                    self.watch.add(line)
            if rank == 0:
                self.run.add_session(learner.steps, changes)
        return changes

    def start(self, facts: Mapping[str, str]) -> None:
        """Give the sampler its first weights, and evaluate the policy before the first step."""
        config = self.config
        for doubt in doubts(config):
            logger.warning(doubt)
        self.sync()
        when = "the first" if config.sampling.async_depth else "every"
        checks = f"{self.synchronizer.checks}; samples compared with the policy in {when} step"
        for callback in self.callbacks:
            callback.started({**facts, "checks": checks})
        evaluated = self.comm.broadcast(bool(self.run.lines()))
        if self.learner.steps == 0 and config.evaluation.every and not evaluated:
            self.metrics = {"step": 0}
            self.evaluate()
            self.write_metrics()
        self.learner.clock.restart()

    def repeated(self, work: Callable[[], _Result], *, push: bool = False) -> _Result:
        """Return the result of work with the sampler; if it lost the weights, send them and repeat.

        All ranks call this together.

        Args:
            work: raises `WeightsLost` on all ranks if the sampler has lost the weights.
            push: give the sampler the policy's weights first.

        Raises:
            RunError: the sampler is lost.
        """
        for left in reversed(range(_PUSHES + 1)):
            try:
                if push:
                    survive = self.learner.steps > 0
                    with together(self.comm, "syncing the sampler", survive=survive):
                        self.synchronizer.push(self.learner.steps)
                return work()
            except WeightsLost as error:
                if not left:
                    raise
                push = True
                if self.comm.rank == 0:
                    logger.warning("%s. It gets version %d again.", error, self.learner.steps)
        raise AssertionError("unreachable")

    def collect(self) -> Rollout:
        """The next step's rollout, from a sampler that holds the weights it was given.

        Raises:
            RunError: the sampler is lost, or has lost the weights.
        """
        step, clock = self.learner.steps, self.learner.clock
        rate = learning_rate(self.config.training, step)
        self.parallel.set_learning_rate(rate)
        clock.start("sampling")

        def take() -> Rollout:
            with together(self.comm, "checking the sampler", survive=True):
                self.synchronizer.check()
            self._seed("rewards")
            return self.pipeline.take(step)

        rollout = self.repeated(take)
        seconds = rollout.seconds
        sampling, grading = 0.0, seconds["hidden"]
        if self.config.sampling.ahead:
            sampling = seconds["sample"]
        else:
            self.sampler.sleep()
        if self.config.sampling.async_depth:  # sampled and graded beside the steps before
            grading += seconds["grade"]
        else:
            clock.move("sampling", "grading", seconds["grade"])
        names, epochs = self.config.rewards.names or (), self.stream.epochs(rollout.stream)
        decoupled = decouples(self.config)
        measured = rollout_metrics(rollout, self.comm, names, decoupled, epochs, step)
        self.metrics = {"step": step + 1, **measured}
        self.metrics["train/learning_rate"] = rate
        self.metrics |= {"time/sampling_hidden": sampling, "time/grading_hidden": grading}
        return rollout

    def after_update(
        self, index: int, batch: MiniBatch, observed: ObservedUpdate | None, metrics: Metrics
    ) -> None:
        """Record an update, and count it if a gradient norm is NaN: it was not finite.

        Raises:
            RunError: too many in a row.
        """
        if observed is not None:
            with self.learner.clock.inside("writing"):
                self.recorder.update(self.learner.steps + 1, index, observed)
        norms = metrics["train/grad_norm"], metrics.get("value/grad_norm", 0.0)
        if not any(map(math.isnan, norms)):
            self.failures["nonfinite"] = 0
            return
        self.failures["nonfinite"] += 1
        ids = [response.id for response in batch.responses]
        rows = f"responses {ids[0]} to {ids[-1]}" if ids else "no responses"
        where = (
            f"step {self.learner.steps + 1}, update {index + 1}, rank {self.comm.rank} with {rows}"
        )
        logger.warning("%s: the update was not finite and was skipped", where)
        if self.failures["nonfinite"] >= self.config.training.max_skipped:
            raise RunError(
                f"log-probs, loss or gradient were not finite in {self.failures['nonfinite']} "
                f"updates in a row. Lower training.learning_rate. The last was {where}",
                finding="update-too-large",
            )

    def record_rollout(self, rollout: Rollout) -> None:
        """Count and record the step, and write its sample table if it is due.

        Raises:
            RunError: too many steps without an update in a row.
        """
        done, self.position = self.learner.steps, rollout.stream
        updates = self.metrics.pop("train/updates", 0.0)
        of_value = self.metrics.get("value/grad_norm", 0.0)
        if self.metrics["train/skipped_updates"] < updates or of_value:
            self.failures["idle"] = 0
        else:
            self._count_idle()
        self.metrics |= self.learner.forward.counts.metrics(self.comm)
        with self.learner.clock.inside("writing"):
            self.recorder.end_step(done)
            if _due(done, self.config.output.samples_every):
                names = self.config.rewards.names or ()
                responses = [*rollout.responses, *rollout.dead]
                kept = len(rollout.responses)
                write_samples(self.run.path, done, responses, kept, self.comm, names)

    def _count_idle(self) -> None:
        """Count a step without an update."""
        self.failures["idle"] += 1
        metrics = self.metrics
        facts = (
            f"step {metrics['step']} changed nothing: {metrics['reward/groups']:.0f} groups kept, "
            f"{metrics['sampling/dead_groups']:.0f} without signal, "
            f"{metrics['reward/undecided']:.0f} responses undecided"
        )
        logger.warning(facts)
        if self.failures["idle"] >= self.config.training.max_skipped:
            raise RunError(
                f"{self.failures['idle']} steps in a row without an update; {facts}. See the "
                "rewards in samples/; sampling.dynamic.by=reward keeps groups of unequal rewards",
                finding=None if metrics["reward/groups"] else "no-signal",
            )

    def sync(self) -> None:
        """The policy's weights into the sampler, when nothing is sampled ahead any more.

        Raises:
            RunError: the sampler is lost, or does not hold the weights.
        """
        clock, steps = self.learner.clock, self.learner.steps
        clock.start("syncing")
        with clock.inside("sampling"):
            try:
                self.pipeline.settle()
            except WeightsLost as error:  # the rollout is sampled when a step takes it
                logger.warning("%s. A rollout is sampled again, from version %d.", error, steps)
        self.repeated(lambda: None, push=True)

    def _seed(self, purpose: str) -> None:
        """Seed the global generators for this step; a resumed run draws the same numbers."""
        seed_generators(derive_seed(self.config.seed, purpose, self.learner.steps, self.comm.rank))

    def evaluate(self) -> None:
        """Evaluate on the test problems if it is due: after some steps, the last, and before the
        first."""
        evaluation, comm, done = self.config.evaluation, self.comm, self.learner.steps
        due = _due(done, evaluation.every) or done == self.config.training.steps
        if not (due and evaluation.every and self.test_problems):
            return
        self.learner.clock.start("evaluating")

        def evaluate_part() -> Sequence[GradedProblem]:
            self._seed("held-out rewards")
            with together(comm, "evaluating", survive=done > 0):
                part = sample_and_grade(
                    self.sampler,
                    self.policy.encode_test,
                    self.test_problems[comm.rank :: comm.size],
                    self.grader,
                    self.config.evaluation_settings(),
                    count=evaluation.samples,
                    seed=derive_seed(self.config.seed, "evaluation"),
                    conversations=self.conversations,
                )
                return [problem.without_texts() for problem in part.problems]

        ranks = comm.gather(self.repeated(evaluate_part))
        whole = (ranks[i % comm.size][i // comm.size] for i in range(len(self.test_problems)))
        evaluated = GradedBenchmark("evaluation", tuple(whole), verdicts=self.grader.says_right)
        for callback in self.callbacks:
            callback.evaluated(done, evaluated)
        self.metrics |= evaluated.metrics()

    def write(self) -> None:
        """End the step: its findings, and its line in metrics.jsonl and in the trackers."""
        if self.comm.rank == 0:  # which writes the lines that a resumed run starts from
            self.begun = self.watch.add(self.metrics)
            self.metrics |= self.watch.metrics()
        self.write_metrics()
        for callback in self.callbacks:
            callback.stepped(self.learner.steps, self.metrics)
            for finding in self.begun:
                callback.found(finding)

    def write_metrics(self) -> None:
        """The line of the step in progress, with the time it took."""
        clock, metrics = self.learner.clock, self.metrics
        if "tokens/sampled" in metrics:
            metrics |= clock.stop(metrics["tokens/sampled"])
        with clock.inside("writing"), together(self.comm, "writing metrics.jsonl"):
            if self.comm.rank == 0:
                self.run.append(metrics)
        log_metrics(self.parallel.accelerator, metrics, metrics["step"])

    def save(self, *, now: bool = False) -> None:
        """A checkpoint of the steps done if it is due, and there is none.

        Args:
            now: it is due, whatever the configuration says.
        """
        done, settings, comm = self.learner.steps, self.config.checkpoint, self.comm
        due = _due(done, settings.every) or done == self.config.training.steps or self._is_best()
        if not (due or now) or done in (0, self.saved):
            return
        state = {
            "step": done,
            "objective": self.learner.state,
            "stream": {**self.position, **self.pipeline.position()},
            "failures": self.failures,
            "strategy": self.parallel.strategy,
            "processes": comm.size,
            "settings": settings_of(self.config),
            "digests": self.digests,
        }
        with self.learner.clock.inside("writing"):
            path = checkpoint.write(self.run, done, self.parallel, self.policy, state, self.learner)
            self.saved = done
            with together(comm, "removing old checkpoints"):
                if comm.rank == 0:
                    best = best_checkpoint(self.run.path) if settings.best else None
                    for old in checkpoints(self.run.path)[: -settings.keep]:
                        if old != best:
                            remove(old)
        for callback in self.callbacks:
            callback.saved(path)

    def _is_best(self) -> bool:
        """Whether this step's evaluation is better than that of every checkpoint; on all ranks."""
        settings = self.config.checkpoint
        value = self.metrics.get(measure_of([self.metrics]).key, math.nan)
        if math.isnan(value) or not (settings.best and settings.every):
            return False
        _, measured = held_out(self.run.path)
        return self.comm.broadcast(all(value > other for other in measured.values()))


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
