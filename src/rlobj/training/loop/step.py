"""A training step, from top to bottom.

    run_step             collect a rollout -> train on it -> sync the sampler -> evaluate -> save
    Learner.train_on     shard -> score -> advantages and controllers -> one update per phase and
                         mini-batch in each pass
    Learner._update      plan -> loss and backward per micro-batch -> optimizer step

What is called here is in `trainer.py` and `learner.py`, which also keep the time. `failures.py`
says what happens when a step fails.
"""

from __future__ import annotations

from rlobj.training.loop.failures import guarded
from rlobj.training.loop.trainer import Trainer


def run_step(trainer: Trainer) -> None:
    """One rollout with all its updates, then everything that is due."""
    with guarded(trainer):
        learner = trainer.learner
        rollout = trainer.collect()
        if trainer.metrics["reward/groups"] > 0:
            trainer.metrics |= learner.train_on(rollout, trainer.after_update)
        else:  # no group has responses that differ in reward
            trainer.metrics |= trainer.check_samples(rollout)
        learner.steps += 1
        learner.scores.follow(learner.steps)
        trainer.record_rollout(rollout)
        trainer.sync()
        trainer.evaluate()
        trainer.write()
        trainer.save()
