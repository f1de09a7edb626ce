"""The algorithm of a training step, from top to bottom.

    run_step   collect a rollout -> train on it -> sync the sampler -> evaluate, write, checkpoint
    train_on   shard -> score -> advantages and controllers -> one update per phase and mini-batch
               in each pass
    update     plan -> loss and backward per micro-batch -> optimizer step

What is called here is in `trainer.py` and `learner.py`, which also keep the time. `failures.py`
says what happens when a step fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlobj.objectives.objective import Objective
from rlobj.records.observed import Observed
from rlobj.records.token_metrics import token_metrics
from rlobj.training.loop.failures import guarded
from rlobj.training.loop.learner import SKIPPED, Learner
from rlobj.training.loop.metrics import PREDICTED, Measured, average
from rlobj.training.loop.micro_batch import observe
from rlobj.training.loop.trainer import Trainer
from rlobj.training.rollouts.collector import Rollout
from rlobj.training.rollouts.sharding import MiniBatch

Metrics = Mapping[str, float]
OnUpdate = Callable[[int, MiniBatch, Observed | None, Metrics], None]


@guarded
def run_step(trainer: Trainer) -> None:
    """One rollout with all its updates, then everything that is due."""
    learner = trainer.learner
    rollout = trainer.collect()
    if trainer.metrics["reward/groups"] > 0:
        trainer.metrics |= train_on(learner, rollout, trainer.after_update)
    else:  # no group has responses that differ in reward
        trainer.metrics |= trainer.check_samples(rollout)
    learner.steps += 1
    trainer.record_rollout(rollout)
    trainer.sync()
    trainer.evaluate()
    trainer.write()
    trainer.save()


def train_on(
    learner: Learner, rollout: Rollout, on_update: OnUpdate = lambda *_: None
) -> dict[str, float]:
    """All updates on one rollout; called by all ranks together.

    Args:
        learner: the policy and its objective.
        rollout: this rank's responses.
        on_update: is called after each update with its number in the step (from 0), its mini-batch
            as the rules read it, what the update observed (None if something in the mini-batch was
            not finite), and its metrics.

    Returns:
        The metrics of the updates, averaged.

    Raises:
        SamplerGap: fresh samples do not come from the policy.
    """
    share = learner.shard(rollout)
    table = learner.score(share)
    if not learner.finite(table):
        on_update(0, MiniBatch(table, share.sequences), None, SKIPPED)
        return {**SKIPPED, "tokens/rank_balance": share.imbalance}
    table = learner.observe(table)
    gap = learner.compare(table)
    updates: list[Metrics] = []
    for phase in learner.objective.phases * learner.config.training.passes:
        for batch in share.mini_batches(table):
            batch = learner.refresh(batch, first=not updates)
            observed, metrics = update(learner, phase, batch)
            if table.entropy is None and observed is not None:  # the only update scored the rollout
                table = table.replace(entropy=observed.entropy)
            on_update(len(updates), batch, observed, metrics)
            updates.append(metrics)
    made = {"train/updates": float(len(updates)), "tokens/rank_balance": share.imbalance}
    whole = {**average(updates), **gap, **made}
    change = learner.entropy_change(table, whole.pop(PREDICTED, 0.0))
    return {**whole, **change}


def update(learner: Learner, phase: Objective, batch: MiniBatch) -> tuple[Observed | None, Metrics]:
    """One optimizer update of one phase on one mini-batch; what it observed, and its metrics."""
    if not learner.finite(batch.table):
        return None, SKIPPED
    plan = learner.plan(phase, batch)
    measured = []
    for micro in learner.micro_batches(phase, batch, plan):
        output = phase.loss(micro.table, micro.plan, check=False)  # `step` skips it
        if micro.trained:
            learner.backward(output.loss, micro.last)
        measured.append(Measured.of(micro.table, output, micro.rows))
    metrics = learner.step(batch, plan, measured)
    observed = observe(phase, batch, plan, learner.state, measured)
    more = token_metrics(observed, learner.comm)
    if metrics["train/skipped_updates"]:
        more.pop(PREDICTED, None)
    return observed, {**more, **metrics}
