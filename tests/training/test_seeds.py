"""The numbers that a reward draws at random are those of the run's seed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import QUICK, ROWS, ROWS_TEMPLATE, metrics, ranks, same, weights

import rlobj

NOISE = """
import os, random
import numpy, torch
def score(response, answer, **columns):
    drawn = [random.random(), numpy.random.rand(), torch.rand(()).item()]
    with open({log!r} + os.environ.get("RANK", ""), "a") as log:
        print(*drawn, file=log)
    return sum(drawn)
"""
SETTINGS = {
    **QUICK,
    **ROWS_TEMPLATE,
    "training.steps": 4,
    "sampling.prompts_per_step": 4,
    "checkpoint.every": 2,
    "evaluation.every": 1,
    "evaluation.samples": 1,
    "evaluation.problems": 4,
}


class Stop(rlobj.Callback):
    """Ends the run after its third step, before the next checkpoint."""

    def stepped(self, step: int, numbers: Mapping[str, float]) -> None:
        if step == 3:
            raise RuntimeError("stopped")


@pytest.fixture
def given(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    file = tmp_path / "noise.py"
    file.write_text(NOISE.format(log=str(tmp_path / "drawn")))
    names = {"model": "embedded", "data": str(rows), "eval_on": str(rows)}
    return {**names, "reward": f"{file}:score"}


def lines(log: Path) -> list[list[str]]:
    """The three numbers of each call; the first was to check the function."""
    return [line.split() for line in log.read_text().splitlines()][1:]


def other_state() -> None:
    """Advance all generators, as other code of a program does."""
    random.seed(), np.random.seed(), torch.seed()  # noqa: NPY002


def test_a_reward_draws_the_numbers_of_the_seed(given, tmp_path):
    found, drawn = [], []
    for seed in (7, 7, 8):
        other_state()
        out = tmp_path / f"run-{len(found)}"
        settings = {**SETTINGS, "seed": seed, "training.steps": 1, "checkpoint.every": 0}
        rlobj.train("grpo", out=out, settings=settings, **given)
        found.append((metrics(out), weights(out)))
        drawn.append(lines(tmp_path / "drawn"))
        (tmp_path / "drawn").unlink()
    (first, w1), (again, w2), (other, _) = found
    assert first == again
    assert same(w1, w2)
    assert first[-1]["reward/mean"] != other[-1]["reward/mean"]
    assert drawn[0] == drawn[1]
    for one, another in zip(drawn[0], drawn[2], strict=True):
        assert not {*one} & {*another}  # of none of the three generators


@pytest.mark.slow
def test_a_resumed_run_draws_the_numbers_of_an_uninterrupted_one(given, tmp_path):
    given |= {"settings": SETTINGS}
    rlobj.train("grpo", out=tmp_path / "whole", **given)
    with pytest.raises(RuntimeError, match="stopped"):
        rlobj.train("grpo", out=tmp_path / "cut", callbacks=[Stop()], **given)
    other_state()
    rlobj.resume(tmp_path / "cut", trust=True)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


@pytest.mark.slow
def test_each_rank_draws_numbers_of_its_own(given, tmp_path):
    words = ["train", "--preset", "grpo", "--model", "embedded", "--data", given["data"]]
    words += ["--reward", given["reward"]]
    for name, value in {**QUICK, **ROWS_TEMPLATE}.items():
        words += ["--set", f"{name}={value}"]
    ranks([*words, "--out", tmp_path / "run"])
    assert metrics(tmp_path / "run")[-1]["train/grad_norm"] > 0
    drawn = [lines(tmp_path / f"drawn{rank}") for rank in (0, 1)]
    assert [len(rank) for rank in drawn] == [16, 16]
    every = [number for rank in drawn for line in rank for number in line]
    assert len(every) == len(set(every))
