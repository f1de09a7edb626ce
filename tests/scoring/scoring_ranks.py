"""The program of test_scoring_ranks: the gradient of a loss over the sequences of two ranks.

    scoring_ranks.py STRATEGY,... FOLDER

with RANK, WORLD_SIZE and the like set. The first rank leaves it in FOLDER/STRATEGY.pt.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from scoring_tools import SEQUENCES, tiny
from torch import Tensor

from rlobj.scoring import PolicyScorer, pad_sequences
from rlobj.training.parallel import Parallel, build_parallel, open_processes

POLICIES = ("tied", "untied", "frozen head", "adapters")
# Of the sequences over two ranks, in micro-batches; in each of them one rank has no row to score,
# for want of sequences or of a response.
SHARES = [[[0, 1], [2]], [[], [3]]]


def policy(name: str) -> Any:
    """A tiny model with the same weights on each rank."""
    model = tiny("qwen3-tied" if name == "tied" else "qwen3-untied").train()
    if name == "frozen head":
        model.lm_head.weight.requires_grad_(False)
    if name == "adapters":
        import peft

        settings = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
        torch.manual_seed(1)
        model = peft.get_peft_model(model, settings)
    return model


def row_weights(index: int) -> Tensor:
    """The loss weights of each token's log-prob and entropy, [2, n]."""
    places = torch.arange(len(SEQUENCES[index][1]))
    weights = torch.stack([torch.sin(1.0 + index + places), torch.cos(2.0 * index + places)])
    weights[:, places == 2] = 0  # a row without a gradient
    return weights


def gradient(parallel: Parallel, name: str, parts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """The gradients of all trained parameters, as ten times AdamW's first moment."""
    model = policy(name)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.999))
    scorer, _ = parallel.prepare(PolicyScorer(model), optimizer)
    for index, part in enumerate(parts):
        batch = pad_sequences([SEQUENCES[i] for i in part])
        scores = scorer(*batch, temperature=0.8, entropy=True)
        found = torch.stack([scores.logprobs, scores.entropy])
        weights = torch.cat([torch.zeros(2, 0), *(row_weights(i) for i in part)], 1)
        parallel.backward((found * weights).sum(), last=index + 1 == len(parts))
    parallel.step(apply=True)
    moments = {key: parallel.moments(p) for key, p in model.named_parameters()}
    return {key: 10 * state["exp_avg"] for key, state in moments.items() if state}


def main(strategies: Sequence[str], folder: Path) -> None:
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        accelerator = open_processes(stack, grouped=True)
        for strategy in strategies:
            if strategy == "zero3":
                from rlobj.training.parallel import zero

                # These policies are so small that nothing would be split, and all reduced at once.
                zero.PERSISTENT_ELEMENTS, zero.BUCKET_ELEMENTS = 0, 1000
            results = {}
            for name in POLICIES:
                parallel = build_parallel(strategy, accelerator, 1e9, None)
                results[name] = gradient(parallel, name, SHARES[parallel.rank])
                parallel.close()
            if accelerator.process_index == 0:
                torch.save(results, folder / f"{strategy}.pt")
        accelerator.wait_for_everyone()
    sys.stdout.flush()
    os._exit(0)  # on CPUs a thread of torch's now and then aborts a process that is through


if __name__ == "__main__":
    main(sys.argv[1].split(","), Path(sys.argv[2]))
