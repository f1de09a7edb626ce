"""A rank that hangs ends the run: the others wait for it until the timeout of the process group."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

import pytest

import rlobj
from rlobj.runs.configuration import read_stop
from rlobj.training.parallel import launcher


class Stopping(rlobj.Callback):
    """After the first step the second rank is stopped."""

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.slow
def test_a_rank_that_hangs_ends_the_run_and_the_other_says_in_which_stage(policy, tmp_path, capfd):
    (tmp_path / "logs").mkdir()
    run = tmp_path / "run"
    program = [sys.executable, __file__, str(policy), str(run)]
    assert launcher.launch([], 2, tmp_path / "logs", program=program) == 1
    report = capfd.readouterr().err
    assert "rank 0: the exit status 1\nrank 1: SIGKILL\n" in report
    assert "rank 0 of 2 has no answer from another rank" in " ".join(report.split())
    stop = read_stop(run)
    assert stop is not None
    assert stop[2].startswith("step 2, other: rank 0 of 2 has no answer from another rank:")
    assert "Timed out waiting 12000ms" in stop[2]


if __name__ == "__main__":
    rlobj.train(
        "grpo",
        model=sys.argv[1],
        data="max-digits",
        out=sys.argv[2],
        callbacks=[Stopping()],
        settings={
            **{"training.steps": 3, "training.hang_timeout": 12.0, "evaluation.every": 0},
            **{"sampling.prompts_per_step": 2, "sampling.group_size": 4, "sampling.max_tokens": 3},
            **{"output.tables_every": 0, "checkpoint.every": 0},
        },
    )
