"""Processes of one evaluation that wait for each other."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest
from torch.distributed import DistNetworkError, HashStore

from rlobj.base.errors import RunError
from rlobj.evaluation import team


@pytest.mark.parametrize(("lives", "limit"), [(1000.0, team.SILENT), (0.0, 600.0)])
def test_a_process_that_shows_no_sign_of_life_is_named(monkeypatch, lives, limit):
    """One that has not started has more time."""
    store, now, once = HashStore(), 0.0, threading.Event()
    once.set()

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        assert now < 2000, "it waits forever"
        for rank, until in enumerate((1e9, lives, 1e9)):
            if now < until:
                team._beat(store, rank, once)

    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(team, "_joined", lambda: (store, 0, 3))
    monkeypatch.setattr(team.time, "sleep", sleep)
    monkeypatch.setattr(team.time, "monotonic", lambda: now)
    with pytest.raises(RunError, match=r"^rank 1 of 3 .*same command again: no stored response"):
        team.Team(alone=False).meet("place")
    assert limit <= now - lives <= limit + 3 * team.BEAT


def test_the_end_of_the_first_process_is_said(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(team, "_joined", lambda: (HashStore(), 1, 2))
    monkeypatch.setattr(HashStore, "add", Mock(side_effect=DistNetworkError("reset")))
    one = team.Team(alone=False)
    one._store = HashStore()
    with pytest.raises(
        RunError, match=r"store of rank 0.* does not answer: reset\. Start the same"
    ):
        next(one.share("work", [1, 2]))
