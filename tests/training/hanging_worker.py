"""A rank of a run in which one of two ranks hangs: `hanging_worker.py HOW WHO POLICY OUT`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rlobj

LIMIT, SLOW = 3.0, 0.2


def score(response: str, answer: str, **columns: Any) -> float:
    """Slow on one rank: its rollout of 16 responses takes longer than the limit."""
    time.sleep(SLOW if os.environ["RANK"] == "1" else 0)
    return float(response == answer)


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
        reward=f"{__file__}:score",
        out=sys.argv[4],
        callbacks=[Hanging()],
        settings={
            **{"training.steps": 3, "training.hang_timeout": LIMIT, "evaluation.every": 0},
            **{"sampling.prompts_per_step": 8, "sampling.group_size": 4, "sampling.max_tokens": 3},
            **{"rewards.concurrency": 1, "output.tables_every": 0, "checkpoint.every": 0},
        },
    )
