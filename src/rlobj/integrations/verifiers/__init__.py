"""Traces of verifiers 0.4, and of trainers that write them, as tables for an objective.

token_batch(traces)                     ->  a TokenBatch, for `Objective.plan` and `Objective.loss`
rlobj replay TRACES.jsonl --preset A,B  ->  what other objectives do to the tokens of a file
rlobj train --environment verifiers:NAME ...  ->  a run on the rollouts of an environment
"""

from collections.abc import Iterable
from typing import Any

from rlobj.base.errors import DataError, reported
from rlobj.conversations.traces import DAMAGED, read_traces
from rlobj.objectives.tokens import TokenBatch

__all__ = ["token_batch"]


def token_batch(traces: Iterable[Any]) -> TokenBatch:
    """The table of traces: a trace is a rollout, and each of its branches is a row.

    A token that several branches share is trained in the first of them, and is context in the
    others. A branch without a trained token is no row; a trace without one is an empty row. Traces
    of agents that do not train are left out. The columns, each if all decided traces have it:

        rollouts          the number of the trace
        groups            the traces of a group, else of a task, and in it of an agent
        rewards           Σ weight·score; NaN = undecided, if the trace is not ok
        turn              the number of the sampled message in the trace
        sampler_logprobs  logprobs
        logprobs          trainer_logprobs, else logprobs
        old_logprobs      trainer_logprobs
        ref_logprobs      reference_logprobs
        entropy           entropies, and old_entropy where there are trainer_logprobs
        advantages        advantages; without them, the objective computes its own from the rewards

    Args:
        traces: objects `Trace` or `Episode`, mappings with their fields, or lines of JSON.

    Raises:
        DataError: no trace has token ids and log-probs, or one is damaged.
    """
    with reported(DataError, "traces of verifiers", *DAMAGED):
        return read_traces(traces)[0]
