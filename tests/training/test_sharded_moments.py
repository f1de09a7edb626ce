"""A training that goes from strategy to strategy, over ranks that do not divide its parameters."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import call_in_ranks
from parallel_worker import Session, assert_alike, tiny_policy

from rlobj.training.parallel import build_parallel, open_processes

SIZES = (2, 3, 5)
WALK = (
    *("zero2", "zero2", "zero3", "zero2", "zero1", "zero2", "fsdp2", "zero2", "ddp"),
    *("zero3", "zero3", "zero1", "zero3", "fsdp2", "zero3", "ddp", "zero1", "zero1"),
    *("fsdp2", "zero1", "ddp", "fsdp2", "fsdp2", "ddp", "ddp", "zero2"),
)
"""Goes once from every strategy to every strategy, itself included."""
LEGS = [(SIZES[3 * i // len(WALK)], strategy) for i, strategy in enumerate(WALK)]
"""(ranks, strategy); each leg makes one update, and the next leg goes on from its state."""
NAMES = ["{1} x {0}".format(*leg) for leg in LEGS]
CHANGES = [f"{a} to {b}" for a, b in zip(["one process", *NAMES], NAMES, strict=False)]
every_change = pytest.mark.parametrize("leg", range(len(LEGS)), ids=CHANGES)


def test_the_legs_go_from_every_strategy_to_every_strategy():
    assert len({*itertools.pairwise(WALK)}) == len({*WALK}) ** 2 == len(WALK) - 1


def odd_policy() -> Any:
    """A policy with sizes that 2, 3 and 5 do not divide."""
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The state before each leg N; what one process makes of it is N-alone."""
    folder = tmp_path_factory.mktemp("walk")
    with contextlib.ExitStack() as stack:
        accelerator = open_processes(stack, grouped=False)
        session = Session(build_parallel("ddp", accelerator, 0.5, None), odd_policy())
        session.update(0)
        session.save(folder / "0.pt")
        for leg in range(len(LEGS)):
            session.update(leg % 4)
        session.save(folder / "uninterrupted.pt")
        for size in SIZES:
            call_in_ranks(rank_main, size, folder)
        for leg in range(len(LEGS)):
            resume("ddp", accelerator, folder, leg, f"{leg}-alone")
    return folder


@pytest.mark.slow
@pytest.mark.deepspeed
@every_change
def test_another_strategy_over_ranks_that_do_not_divide_goes_on_as_one_process(leg, folder):
    assert_alike(folder, f"{leg + 1}", f"{leg}-alone", 1e-6)


@pytest.mark.slow
@pytest.mark.deepspeed
def test_a_training_over_all_strategies_equals_an_uninterrupted_one(folder):
    assert_alike(folder, f"{len(LEGS)}", "uninterrupted", 1e-5, 1e-4)
