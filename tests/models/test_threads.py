"""How many threads torch computes a model with."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from rlobj.models.threads import SMALL, usual_threads
from rlobj.settings.run_config import RunConfig
from rlobj.training.loop.opening import _open_processes
from rlobj.training.parallel import launcher


@pytest.fixture
def four():
    """torch has four threads, as on a machine with four cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("size", "gpu", "threads"), [(-1, False, 1), (0, False, 4), (-1, True, 4)])
def test_small_models_have_one_thread_on_a_cpu_and_others_what_torch_has(
    four, monkeypatch, size, gpu, threads
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    with torch.device("meta"):
        model = torch.nn.Linear(SMALL + size, 1, bias=False)
    assert usual_threads(model) == threads


@pytest.mark.parametrize(("variable", "threads"), [(None, 2), ("4", 4)])
def test_processes_of_a_machine_share_its_cores_unless_the_user_says_how_many(
    four, monkeypatch, variable, threads
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with ExitStack() as stack:
        _open_processes(RunConfig(), stack)
        assert torch.get_num_threads() == threads
        torch.set_num_threads(1)
    assert torch.get_num_threads() == 4, "the caller's number is back"


@pytest.mark.parametrize(("processes", "threads"), [(2, "3"), (4, "1"), (9, "1")])
def test_launched_processes_share_the_cores(monkeypatch, processes, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(launcher.os, "sched_getaffinity", lambda _: range(6), raising=False)
    monkeypatch.setattr(launcher.os, "cpu_count", lambda: 6)
    environments = launcher._environments(processes)
    assert {each["OMP_NUM_THREADS"] for each in environments} == {threads}
