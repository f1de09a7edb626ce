"""Processes that share an evaluation."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from forked import call_in_ranks

import rlobj
from rlobj.base.errors import ConfigError, RunError
from rlobj.evaluation.evaluating import Team

ROWS = [{"id": f"p{a}", "problem": f"{a}+1=", "answer": str(a + 1)} for a in range(4)]
QUICK: dict[str, Any] = {"n": 3, "max_tokens": 6, "template": "{prompt}", "reward": "exact"}


@pytest.mark.parametrize(("count", "size"), [(0, 2), (1, 3), (10, 3), (25, 2)])
def test_each_response_is_of_one_process_and_neighbours_are_of_several(count, size):
    shares = []
    for rank in range(size):
        one = Team(alone=True)
        one.rank, one.size = rank, size
        shares.append(one.share(range(count)))
    assert sorted(place for share in shares for place in share) == list(range(count))
    assert all(rank == place % size for rank, share in enumerate(shares) for place in share)


def evaluated(policy: Path, **more: Any) -> dict[str, Any]:
    """The responses and numbers of an evaluation."""
    result = rlobj.evaluate(policy, ROWS, **QUICK, **more)
    return {"rows": result.rows, "results": result.to_dict()["results"]}


def evaluated_in_a_process(rank: int, size: int, folder: str) -> None:
    """Two evaluations of all processes, and one of each process alone; what they return."""
    home = Path(folder)
    results = [
        evaluated(home / "policy", seed=seed, out=home / out, processes=alone)
        for seed, out, alone in [(0, "first", None), (1, "second", None), (0, f"own-{rank}", 1)]
    ]
    results.append(evaluated(home / "policy"))  # in memory: alone as well
    (home / f"{rank}.json").write_text(json.dumps(results))


@pytest.mark.slow
def test_each_of_several_processes_returns_the_result_of_one(policy, tmp_path) -> None:
    shutil.copytree(policy, tmp_path / "policy")
    expected = [evaluated(policy, seed=seed) for seed in (0, 1, 0, 0)]
    call_in_ranks(evaluated_in_a_process, 2, tmp_path)
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected


def waits_for_one_that_ends(rank: int, size: int, folder: str) -> None:
    """Two processes meet; then the second is killed, and the first says that it waits in vain."""
    processes = Team(alone=False)
    processes.meet()
    if rank:
        os._exit(0)
    with pytest.raises(RunError) as caught:
        processes.meet()
    (Path(folder) / "error").write_text(str(caught.value))


def test_no_process_waits_for_one_that_has_ended(tmp_path) -> None:
    call_in_ranks(waits_for_one_that_ends, 2, tmp_path)
    assert "start all of them again" in (tmp_path / "error").read_text()


def test_error_if_the_other_processes_cannot_be_found(policy, tmp_path, monkeypatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 2.*MASTER_ADDR.*torchrun or accelerate"):
        rlobj.evaluate(policy, ROWS, **QUICK, out=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"torchrun --nproc-per-node 3, or type: rlobj eval"):
        rlobj.evaluate(policy, ROWS, **QUICK, out=tmp_path / "out", processes=3)
