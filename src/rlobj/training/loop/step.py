"""A training step, from top to bottom.

    run_step   collect a rollout -> train on it -> sync the sampler -> evaluate, write, checkpoint

`learner.py` trains; `stages.py` has the other stages. Both keep the time. `failures.py` says what
happens when a step fails.
"""

from __future__ import annotations

from functools import partial

from rlobj.training.loop import stages
from rlobj.training.loop.failures import guarded
from rlobj.training.loop.parts import Parts


@guarded
def run_step(parts: Parts) -> None:
    """One rollout with all its updates, then everything that is due."""
    learner = parts.learner
    rollout = stages.collect(parts)
    if parts.metrics["reward/groups"] > 0:
        parts.metrics |= learner.train_on(rollout, partial(stages.after_update, parts))
    else:  # no group has responses that differ in reward
        parts.metrics |= stages.check_samples(parts, rollout)
    learner.steps += 1
    stages.record_rollout(parts, rollout)
    stages.sync(parts)
    stages.evaluate(parts)
    stages.write(parts)
    stages.save(parts)
