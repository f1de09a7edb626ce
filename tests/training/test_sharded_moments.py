"""AdamW's moments of a checkpoint, given to the ranks of another run."""

from __future__ import annotations

import contextlib

import pytest
import torch
from forked import call_in_ranks
from parallel_worker import tiny_policy

from rlobj.scoring import PolicyScorer
from rlobj.training.parallel import build_parallel, open_processes

STRATEGIES = ("zero1", "zero2", "zero3")
ODD = {"vocab_size": 47, "hidden_size": 37, "intermediate_size": 61}
"""Prime sizes of a policy: 2, 3 and 5 ranks do not divide its parameters."""


def rank_main(rank: int, size: int, folder: str) -> None:
    from rlobj.training.parallel import zero

    torch.set_num_threads(1)
    zero.PERSISTENT_ELEMENTS, zero.BUCKET_ELEMENTS = 0, 1000  # else stage 3 shards nothing here
    with contextlib.ExitStack() as stack:
        accelerator = open_processes(stack, grouped=True)
        for strategy in STRATEGIES:
            parallel = build_parallel(strategy, accelerator, 1.0, None)
            model = tiny_policy(**ODD)
            shapes = {name: p.shape for name, p in model.named_parameters()}
            parallel.prepare(PolicyScorer(model), torch.optim.AdamW(model.parameters(), lr=1e-3))
            generator = torch.Generator().manual_seed(1)
            for name, parameter in model.named_parameters():
                given = {
                    "exp_avg": torch.randn(shapes[name], generator=generator),
                    "exp_avg_sq": torch.rand(shapes[name], generator=generator),
                    "step": torch.tensor(7.0),
                }
                parallel.set_moments(parameter, given)
                found = parallel.moments(parameter)
                for key, value in given.items():
                    assert torch.equal(found[key].reshape(value.shape), value), (strategy, name)
            parallel.close()
        accelerator.wait_for_everyone()


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("size", [2, 3, 5])
def test_moments_are_restored_where_ranks_do_not_divide_a_parameter(size, tmp_path):
    call_in_ranks(rank_main, size, tmp_path)
