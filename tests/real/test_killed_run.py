"""A run of SmolLM2 that is killed and resumed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from real.sums import short_run
from runs import finish, metrics, program, same, wait_for_step, weights, write_config

from rlobj.training import run_training


@pytest.mark.slow
def test_a_killed_run_ends_with_the_bits_of_one_that_nothing_happened_to(
    smollm2: Path, whole_run: Path, scratch: Path
) -> None:
    run, log = scratch / "run", scratch / "log"
    config = short_run(smollm2, scratch, checkpoint={"every": 1, "keep": 1})
    words = ["train", "--config", write_config(config, scratch / "run.yaml"), "--out", run]
    process = program(words, log)
    wait_for_step(run, 1, process, log)
    process.kill()
    finish(process, log, code=-signal.SIGKILL)
    run_training(config, run, resume=True)
    assert metrics(run) == metrics(whole_run)
    assert same(weights(run), weights(whole_run))
