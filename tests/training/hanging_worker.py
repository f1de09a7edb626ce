"""A rank of a run in which one of two ranks hangs: `hanging_worker.py HOW WHO POLICY OUT`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import rlobj

LIMIT = 12.0


class Hanging(rlobj.Callback):
    """After the first step one of the ranks does nothing any more."""

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        how, who, *_ = sys.argv[1:]
        if step == 1 and os.environ["RANK"] == who:
            Path(sys.argv[4], "hangs").touch()
            time.sleep(1000) if how == "sleeps" else os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    rlobj.train(
        "grpo",
        model=sys.argv[3],
        data="max-digits",
        reward=f"{Path(__file__).with_name('slow_reward.py')}:score",
        out=sys.argv[4],
        callbacks=[Hanging()],
        settings={
            **{"training.steps": 3, "training.hang_timeout": LIMIT, "evaluation.every": 0},
            **{"sampling.prompts_per_step": 8, "sampling.group_size": 4, "sampling.max_tokens": 3},
            **{"rewards.concurrency": 1, "output.tables_every": 0, "checkpoint.every": 0},
        },
    )
