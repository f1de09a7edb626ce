"""A training that goes from strategy to strategy, over ranks that do not divide its parameters."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import call_in_ranks
from parallel_worker import Session, assert_alike, tiny_policy

from rlobj.training.parallel import build_parallel, open_processes

LEGS = [
    *((3, strategy) for strategy in ("zero2", "zero3", "fsdp2", "ddp")),
    *((5, strategy) for strategy in ("zero3", "fsdp2", "zero2")),
]
"""(ranks, strategy); each leg makes one update, and the next leg goes on from its state. What a leg
leaves are whole tensors by name, so each strategy has to write them once and to read them once."""


def odd_policy() -> Any:
    """A policy with sizes that 3 and 5 do not divide."""
    return tiny_policy(vocab_size=49, hidden_size=37, intermediate_size=61, head_dim=6)


def resume(strategy: str, accelerator: Any, folder: Path, leg: int, end: str) -> None:
    """Make the update of a leg; each rank must have every bit of the state before it."""
    state = torch.load(folder / f"{leg}.pt")
    model = odd_policy()
    model.load_state_dict(state["weights"], strict=False)  # the head is the embedding
    session = Session(build_parallel(strategy, accelerator, 0.5, None), model)
    session.restore_moments(state["moments"])
    for name, weight in session.weights().items():
        assert torch.equal(weight, state["weights"][name]), (LEGS[leg], name)
    for name, moments in session.moments().items():
        for key, value in state["moments"][name].items():
            assert torch.equal(moments[key].reshape(value.shape), value), (LEGS[leg], name, key)
    session.update(leg % 4)
    session.save(folder / f"{end}.pt")
    session.parallel.close()


def rank_main(rank: int, size: int, folder: str) -> None:
    from rlobj.training.parallel import zero

    torch.set_num_threads(1)
    zero.PERSISTENT_ELEMENTS, zero.BUCKET_ELEMENTS = 100, 1000  # stage 3 shards all but the norms
    with contextlib.ExitStack() as stack:
        accelerator = open_processes(stack, grouped=True)
        for leg, (ranks, strategy) in enumerate(LEGS):
            if ranks == size:
                resume(strategy, accelerator, Path(folder), leg, f"{leg + 1}")
                accelerator.wait_for_everyone()
    os._exit(0)  # on CPUs a thread of fsdp2 sometimes aborts a process that has finished


@pytest.mark.slow
@pytest.mark.deepspeed
def test_another_strategy_over_ranks_that_do_not_divide_goes_on_as_one_process(tmp_path):
    with contextlib.ExitStack() as stack:
        accelerator = open_processes(stack, grouped=False)
        session = Session(build_parallel("ddp", accelerator, 0.5, None), odd_policy())
        session.update(0)
        session.save(tmp_path / "0.pt")
        for leg in range(len(LEGS)):
            session.update(leg % 4)
        session.save(tmp_path / "uninterrupted.pt")
        for size in (3, 5):
            call_in_ranks(rank_main, size, tmp_path)
        for leg in range(len(LEGS)):
            resume("ddp", accelerator, tmp_path, leg, f"{leg}-alone")
            assert_alike(tmp_path, f"{leg + 1}", f"{leg}-alone", 1e-6)
    assert_alike(tmp_path, f"{len(LEGS)}", "uninterrupted", 1e-5, 1e-4)
