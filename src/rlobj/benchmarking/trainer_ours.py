"""Our side of `trainer`: the work as a run of `rlobj train`, timed by a callback."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlobj.benchmarking.processes import peak_mib
from rlobj.benchmarking.trainer_work import BETAS, CLIP, EPSILON, Asked, Work
from rlobj.config.run_config import RunConfig, compose
from rlobj.training import Callback, run_training

__all__ = ["answer", "configuration"]


def configuration(work: Work, asked: Asked, seed: int) -> RunConfig:
    """The run: DAPO's loss, float32 on one thread, no evaluation and no tables of samples."""
    settings: dict[str, Any] = {
        "model": {"name": work.policy, "dtype": "float32"},
        "data": {"source": work.problems, "template": "{prompt}"},
        "rewards": {"kind": "custom", "target": work.reward},
        "objective": {
            "advantage": {"kind": "group_normalized", "epsilon": EPSILON},
            "surrogate": {"kind": "clip", "low": CLIP[0], "high": CLIP[1]},
        },
        "sampling": {
            "engine": "transformers",
            "prompts_per_step": work.prompts,
            "group_size": work.group,
            "max_tokens": work.max_tokens,
            "temperature": 1.0,
        },
        "training": {
            "steps": asked.steps,
            "micro_batch_tokens": asked.micro_batch,
            "learning_rate": work.learning_rate,
            "betas": BETAS,
        },
        "evaluation": {"every": 0},
        "checkpoint": {"every": 0},
        "output": {"samples_every": 0, "tokens_every": 0},
        "seed": seed,
    }
    return compose("dapo-loss", [("benchmark", settings)])


class Watch(Callback):
    """CPU seconds of each step, and of its rollout: drawing responses and grading them."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.loaded = 0.0
        self._began = self._sampling = self._rollout = 0.0
        self._drawing = False

    def started(self, facts: Mapping[str, str]) -> None:
        """The policy is loaded: what memory is taken from here on is the training's."""
        self.loaded = peak_mib(reset=True)
        self._began = time.process_time()

    def phase(self, name: str) -> None:
        """The rollout ends where a phase begins that is no part of it."""
        now = time.process_time()
        if self._drawing:
            self._rollout += now - self._sampling
        self._drawing, self._sampling = name in ("sampling", "grading"), now

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """One more step; the next begins here."""
        now = time.process_time()
        self.steps.append(
            {
                "seconds": now - self._began,
                "rollout": self._rollout,
                "reward": metrics["reward/mean"],
                "length": metrics["response/length_mean"],
                "useful": metrics["tokens/useful_share"],
            }
        )
        self._began, self._rollout = now, 0.0


def answer(asked: Asked, folder: Path) -> list[dict[str, Any]]:
    """What each seed's run measured: its steps, and the peak of memory above the loaded policy."""
    work, runs = asked.prepare(folder), []
    for seed in asked.seeds:
        watch = Watch()
        run_training(configuration(work, asked, seed), folder / f"run-{seed}", callbacks=[watch])
        runs.append({"steps": watch.steps, "mib": peak_mib() - watch.loaded})
    return runs


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(answer(Asked.parse(sys.argv[1]), Path(place))))
