"""Train the policy on several processes: one interface for four strategies.

    ddp             every process has everything; gradients are reduced at the last micro-batch
    zero2           DeepSpeed: moments and gradients are sharded
    zero3           DeepSpeed: moments, gradients and weights are sharded
    fsdp2           torch's fully_shard: moments, gradients and weights are sharded

    parallel = open_parallel("ddp", max_grad_norm=1.0, autocast=None, seed=0)
    scorer = parallel.prepare(PolicyScorer(model), AdamW(model.parameters()))
    for batch in batches:                       # the same number on every rank
        loss = ...scorer(*pad_sequences(batch))...
        parallel.backward(loss, last=...)
    norm = parallel.step(apply=True)

`processes` opens the processes. `strategies` has the interface and ddp;
`fsdp2` and `zero` implement it. `launcher` starts the processes of a run.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
