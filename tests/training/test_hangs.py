"""A rank that hangs ends the run; one that is slow does not."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hanging_worker
import pytest
from forked import Forked, wait_until
from hanging_worker import LIMIT
from slow_reward import SLOW

from rlobj.base.ports import free_port
from rlobj.runs.sessions import read_stop


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_a_slow_one_goes_on(policy, tmp_path):
    """The rollout of the second rank takes longer than the limit, and is no hang.

    The first rank has the store in which the ranks tell of their progress. The runs mostly wait,
    so both are made at one time.
    """
    with ThreadPoolExecutor() as pool:
        cases = [pool.submit(hang, policy, tmp_path, "sleeps", 1)]
        cases.append(pool.submit(hang, policy, tmp_path, "stops", 0))
    for case in cases:
        case.result()


def hang(policy: Path, folder: Path, how: str, who: int) -> None:
    """A run in which a rank sleeps or is stopped."""
    run, logs = folder / how, [folder / f"{how}-{rank}.log" for rank in (0, 1)]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = [hanging_worker.__file__, how, str(who), policy, run]
    ranks = []
    for rank, log in enumerate(logs):
        own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with log.open("w") as file:
            ranks.append(Forked(words, file, env={**os.environ, **own}))
    other = 1 - who
    try:
        wait_until((run / "hangs").exists, 300, ranks[other], logs[other])
        assert ranks[other].wait(300) == 1, logs[other].read_text()
        if how == "sleeps":
            assert ranks[who].wait(300) == 1
    finally:
        for each in ranks:
            each.kill()
            each.wait(300)
    [step] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert step["step"] == 1
    assert step["time/step"] > 16 * SLOW > LIMIT
    said, stop = logs[other].read_text(), read_stop(run)
    assert f"no progress for {LIMIT:g} s on rank {who} (" in said
    assert stop is not None
    assert f"on rank {who} (" in stop[2]
    if how == "sleeps":  # its output shows where
        assert 'hanging_worker.py", line' in logs[who].read_text()
