"""What a step makes a scoring pass for: columns of the policy that are read before an update."""

from rlobj.objectives.objective import Objective
from rlobj.settings.training import TrainingConfig

CURRENT = ("logprobs", "entropy", "collision")
"""The columns of the policy's present weights."""
_OF_PASS = {*CURRENT, *(f"old_{name}" for name in CURRENT), "proxy_logprobs"}


def scored_columns(objective: Objective, training: TrainingConfig) -> frozenset[str]:
    """The columns that the scoring pass of a step is made for; if there are none, no pass is made.

    Args:
        objective: of the run.
        training: of the run. With `old_logprobs` "sampler", l0 needs no pass.
    """
    needs, in_loss = objective.needs, {"proxy_logprobs"}
    read = needs.observe | needs.plan
    if training.old_logprobs == "sampler":
        read -= {"old_logprobs"}
        in_loss |= {"old_entropy", "old_collision"}  # an update's own pass is not l0's
    elif training.updates * len(objective.phases) > 1:  # for the metrics, if for nothing else
        read |= {"old_logprobs"}
    of_pass = _OF_PASS | objective.divergences.keys()
    return frozenset((read | (needs.loss & in_loss)) & of_pass)
