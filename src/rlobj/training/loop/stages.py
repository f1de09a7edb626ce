"""The stages of a step around the training itself: collect, sync, evaluate, write, checkpoint.

Each adds its numbers to `Parts.metrics` and its time to the learner's clock.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from rlobj.base.files import remove, step_of
from rlobj.base.progress import waiting
from rlobj.config.run_config import settings_of
from rlobj.config.run_folder import best_checkpoint, checkpoints, held_out, measure_of
from rlobj.evaluation import GradedBenchmark, GradedProblem, sample_and_grade, summarise
from rlobj.ranks import together
from rlobj.records.observed import ObservedUpdate
from rlobj.samplers import Sample, derive_seed
from rlobj.samplers.types import WeightsLost, seed_generators
from rlobj.training.loop.metrics import rollout_metrics, sameness_metrics
from rlobj.training.loop.parts import Parts
from rlobj.training.rollouts.collector import Rollout
from rlobj.training.rollouts.sharding import MiniBatch
from rlobj.training.storage import checkpoint
from rlobj.training.storage.tables import write_samples

PROBE_PROMPTS, PROBE_SAMPLES, PROBE_TOKENS = 4, 8, 16
"""Prompts per rank, samples of each and tokens per sample, that compare sampler and policy where no
fresh rollout can."""
_PUSHES = 5
"""Pushes in a row after each of which the sampler is lost again, until the run stops."""

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def repeated(parts: Parts, work: Callable[[], _Result], *, push: bool = False) -> _Result:
    """Return the result of work with the sampler; if the sampler is restarted, repeat the work.

    A restarted sampler gets the policy's weights and is checked. All ranks call this together.

    Args:
        parts: the run's.
        work: raises `WeightsLost` on all ranks if the sampler is restarted.
        push: give the sampler the policy's weights first.

    Raises:
        RunError: the sampler is lost.
    """
    for left in reversed(range(_PUSHES + 1)):
        try:
            if push:
                survive = parts.learner.steps > 0
                with waiting(), together(parts.comm, "syncing the sampler", survive=survive):
                    parts.synchronizer.push(parts.learner.steps)
            return work()
        except WeightsLost as error:
            if not left:
                raise
            push = True
            if parts.comm.rank == 0:
                logger.warning("%s. It gets version %d again.", error, parts.learner.steps)
    raise AssertionError("unreachable")


def collect(parts: Parts) -> Rollout:
    """The next step's rollout, from a sampler that holds the weights it was given.

    Raises:
        RunError: the sampler is lost, or has lost the weights.
    """
    step, clock = parts.learner.steps, parts.learner.clock
    rate = parts.learner.set_learning_rate()
    clock.start("sampling")

    def take() -> Rollout:
        with together(parts.comm, "checking the sampler", survive=True):
            parts.synchronizer.check()
        _seed(parts, "rewards")
        return parts.pipeline.take(step)

    rollout = repeated(parts, take)
    seconds = rollout.seconds
    if parts.config.sampling.async_depth:  # sampled and graded beside the steps before
        hidden = {"sampling": seconds["sample"], "grading": seconds["hidden"] + seconds["grade"]}
    else:
        parts.sampler.sleep()
        clock.move("sampling", "grading", seconds["grade"])
        clock.move("sampling", "writing", seconds["write"])
        hidden = {"sampling": 0.0, "grading": seconds["hidden"]}
    names = parts.config.rewards.names or ()
    decoupled = bool(names) and parts.config.objective.advantage.decoupled
    measured = rollout_metrics(rollout, parts.comm, names, decoupled)
    parts.metrics = {"step": step + 1, **measured}
    parts.metrics |= sameness_metrics(rollout, parts.comm)
    parts.metrics["train/learning_rate"] = rate
    parts.metrics |= {f"time/{phase}_hidden": spent for phase, spent in hidden.items()}
    return rollout


def check_samples(parts: Parts, rollout: Rollout) -> dict[str, float]:
    """The gap between sampler and policy on a few samples of a rollout without any signal.

    Raises:
        SamplerGap: fresh samples do not come from the policy.
    """
    parts.learner.clock.start("scoring")
    few = [response.sample for response in rollout.dead[: PROBE_PROMPTS * PROBE_SAMPLES]]
    return {**parts.learner.compare_samples(few), "train/skipped_updates": 1.0}


def after_update(
    parts: Parts,
    index: int,
    batch: MiniBatch,
    observed: ObservedUpdate | None,
    metrics: Mapping[str, float],
) -> None:
    """Count an update, and record it."""
    if observed is not None:
        with parts.learner.clock.inside("writing"):
            parts.recorder.update(parts.learner.steps + 1, index, observed)
    parts.skips.count_update(parts.learner.steps, index, batch, metrics)


def record_rollout(parts: Parts, rollout: Rollout) -> None:
    """Count and record the step, and write its sample table if it is due.

    Raises:
        RunError: too many steps without an update in a row.
    """
    done = parts.learner.steps
    parts.skips.count_step(done - 1, parts.metrics, rollout.undecided)
    parts.metrics.pop("train/updates", None)
    parts.metrics |= parts.learner.forward.counts.metrics(parts.comm)
    with parts.learner.clock.inside("writing"):
        parts.recorder.end_step(done)
    if _due(done, parts.config.output.samples_every):
        with parts.learner.clock.inside("writing"):
            names = parts.config.rewards.names or ()
            write_samples(parts.run, done, rollout, parts.comm, names)


def sync(parts: Parts) -> None:
    """The policy's weights into the sampler; then check that it samples from them.

    Raises:
        RunError: the sampler is lost, or does not hold the weights.
        SamplerGap: its samples do not come from the policy.
    """
    clock, steps = parts.learner.clock, parts.learner.steps
    clock.start("syncing")
    with clock.inside("sampling"):
        try:
            parts.pipeline.settle()
        except WeightsLost as error:  # the rollout is sampled when a step takes it
            logger.warning("%s. A rollout is sampled again, from version %d.", error, steps)

    probes, score = parts.probes, getattr(parts.sampler, "score", None)

    def exchange() -> tuple[list[Sample], list[float]]:
        """Fresh samples where they are needed, and the engine's log-probs of the probes."""
        fresh: list[Sample] = []
        with together(parts.comm, "probing the sampler", survive=steps > 0):
            if parts.config.sampling.async_depth or (score and not probes.sequences):
                fresh = _draw(parts)
            if score is None:
                return fresh, []
            # The engine draws a token to score a sequence: the last one leaves room for it.
            found = [(s.prompt, s.tokens[:-1]) for s in fresh if len(s.tokens) > 1]
            probes.sequences = probes.sequences or found
            return fresh, score(probes.sequences)

    fresh, engine = repeated(parts, exchange, push=True)
    if score is not None:
        trainer = parts.learner.logprobs(probes.sequences, temperature=1.0)
        parts.metrics |= probes.check(trainer, torch.tensor(engine))
    if parts.config.sampling.async_depth:  # rollouts are too old to be compared with the policy
        parts.learner.compare_samples(fresh, drawn=True)


def _draw(parts: Parts) -> list[Sample]:
    """Some short samples of the first problems."""
    settings = parts.config.sampling.settings()
    short = settings.model_copy(update={"max_tokens": min(settings.max_tokens, PROBE_TOKENS)})
    prompts = [parts.policy.encode(p) for p in parts.stream.first(PROBE_PROMPTS)]
    seeds = [derive_seed(parts.learner.steps, "probe", i) for i in range(len(prompts))]
    groups = parts.sampler.sample(prompts, count=PROBE_SAMPLES, settings=short, seeds=seeds)
    return [sample for group in groups for sample in group]


def _seed(parts: Parts, purpose: str) -> None:
    """Seed the global generators for this step, so that a resumed run draws the same numbers."""
    seed_generators(derive_seed(parts.config.seed, purpose, parts.learner.steps, parts.comm.rank))


def evaluate(parts: Parts) -> None:
    """Evaluate on the test problems if it is due: after some steps, the last, and before the
    first."""
    evaluation, comm, done = parts.config.evaluation, parts.comm, parts.learner.steps
    due = _due(done, evaluation.every) or done == parts.config.training.steps
    if not (due and evaluation.every and parts.test_problems):
        return
    parts.learner.clock.start("evaluating")

    def own() -> list[GradedProblem]:
        _seed(parts, "held-out rewards")
        with together(comm, "evaluating", survive=done > 0):
            part = sample_and_grade(
                parts.sampler,
                parts.policy.encode_test,
                parts.test_problems[comm.rank :: comm.size],
                parts.grader,
                parts.config.evaluation_settings(),
                count=evaluation.samples,
                seed=derive_seed(parts.config.seed, "evaluation"),
            )
            return list(part.problems)

    ranks = comm.gather(repeated(parts, own))
    whole = [ranks[i % comm.size][i // comm.size] for i in range(len(parts.test_problems))]
    graded = GradedBenchmark("evaluation", tuple(whole))
    summary = summarise(graded, says_right=parts.grader.says_right)
    for callback in parts.callbacks:
        callback.evaluated(done, summary)
    parts.metrics |= summary.metrics()


def write(parts: Parts) -> None:
    """End the step: its findings, and its line in metrics.jsonl and in the trackers."""
    if parts.comm.rank == 0:  # which writes the lines that a resumed run starts from
        parts.begun = parts.watch.add(parts.metrics)
        parts.metrics |= parts.watch.metrics()
    write_metrics(parts)
    for callback in parts.callbacks:
        callback.stepped(parts.learner.steps, parts.metrics)
        for finding in parts.begun:
            callback.found(finding)


def write_metrics(parts: Parts) -> None:
    """The line of the step in progress, with the time it took."""
    clock, metrics = parts.learner.clock, parts.metrics
    if "tokens/sampled" in metrics:
        metrics |= clock.stop(metrics["tokens/sampled"])
    with clock.inside("writing"), together(parts.comm, "writing metrics.jsonl"):
        if parts.comm.rank == 0:
            parts.run.append(metrics)
    parts.trackers.log(metrics, metrics["step"])


def save(parts: Parts, *, now: bool = False) -> None:
    """A checkpoint of the steps done if it is due, and there is none.

    Args:
        parts: the run's.
        now: it is due, whatever the configuration says.
    """
    done, settings, comm = parts.learner.steps, parts.config.checkpoint, parts.comm
    due = _due(done, settings.every) or done == parts.config.training.steps or _is_best(parts)
    if not (due or now):
        if not settings.every and comm.rank == 0:
            parts.journal.forget(before=done)  # no checkpoint will cover them
        return
    if done in (0, parts.saved):
        return
    state = {
        "step": done,
        "objective": parts.learner.state,
        "stream": parts.stream.state(),
        "failures": parts.skips.state(),
        "records": parts.recorder.state,
        "strategy": parts.parallel.strategy,
        "processes": comm.size,
        "settings": settings_of(parts.config),
        "key": parts.journal.key,
    }
    ahead = parts.pipeline.pending()

    def add_rollouts(folder: Path) -> None:
        parts.journal.copy_into(folder / "rollouts", ahead)

    with parts.learner.clock.inside("writing"):
        parts.recorder.close_file()  # a resumed run deletes the files of later steps
        with waiting():  # for a slow disk
            path = checkpoint.write(
                parts.run, done, parts.parallel, parts.policy, state, add_rollouts
            )
        parts.saved = done
        with together(comm, "removing old checkpoints"):
            if comm.rank == 0:
                best = best_checkpoint(parts.run.path) if settings.best else None
                known = {line["step"] for line in parts.run.lines()}
                for old in checkpoints(parts.run.path)[: -settings.keep]:
                    # one whose line is damaged or lost may be the best
                    if old != best and (step_of(old) in known or not settings.best):
                        remove(old)
                parts.journal.forget(before=done)
    for callback in parts.callbacks:
        callback.saved(path)


def _is_best(parts: Parts) -> bool:
    """Whether this step's evaluation is better than that of every checkpoint; on all ranks."""
    settings = parts.config.checkpoint
    value = parts.metrics.get(measure_of([parts.metrics]).key, math.nan)
    if math.isnan(value) or not (settings.best and settings.every):
        return False
    _, measured = held_out(parts.run.path)
    return parts.comm.broadcast(all(value > other for other in measured.values()))


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
