"""How the policy is spread over processes: one small interface over five strategies.

    ddp             every process holds everything; gradients are averaged with the last micro-batch
    zero1           DeepSpeed: moments are split
    zero2           DeepSpeed: moments and gradients are split
    zero3           DeepSpeed: moments, gradients and weights are split
    fsdp2           torch's fully_shard: moments, gradients and weights are split; needs GPUs

    parallel = open_parallel("auto", max_grad_norm=1.0, autocast=None, seed=0)
    scorer, optimizer = parallel.prepare(PolicyScorer(model), AdamW(model.parameters()))
    for batch in batches:                       # as many on every rank
        loss = ...scorer(*pad_sequences(batch))...
        parallel.backward(loss, last=...)
    norm = parallel.step(apply=True)

`launch` reads the environment and opens the processes, `base` has the interface, and `replicated`,
`zero` and `sharded` one implementation each.
"""

from rlobj.training.parallel.base import Moments, Parallel
from rlobj.training.parallel.environment import (
    DEEPSPEED_MINIMUM,
    TIMEOUT,
    Strategy,
    build_parallel,
    open_parallel,
    open_processes,
    resolve_strategy,
)

__all__ = [
    "DEEPSPEED_MINIMUM",
    "TIMEOUT",
    "Moments",
    "Parallel",
    "Strategy",
    "build_parallel",
    "open_parallel",
    "open_processes",
    "resolve_strategy",
]
