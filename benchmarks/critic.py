"""What a critic costs: `ppo` beside `grpo` at equal tokens, with SmolLM2-135M.

The work is `trainer`'s: sums after two examples, prompts of 28 tokens, responses of 6 or 60 at
most, 64 or 16 responses a step, one update a step. `grpo` has 8 responses to a prompt; the passes
of the policy compute a prompt once for them. `ppo` has the same prompts and as many responses, or
one response to each of 8 times as many prompts. Both train on every token: grpo could leave out
groups whose rewards are all equal, of which there are many in sums (`training.skip_inactive`).

CPU seconds are of a step at one thread, the median of the steps after the first; the rollout is
drawing and grading. 'Explained' is the explained variance of the value in the last step. MiB are
the largest resident memory of the process in the whole run, with the checkpoint at its end. Ratios
are to grpo with responses of this length.

    python -m benchmarks.critic [--full] [--rounds K] [--out DIR]
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import rlobj
from benchmarks.harness import Table, asked, main, medians, peak_mib, ratio
from benchmarks.made_up import QUIET
from benchmarks.trainer import Watch
from benchmarks.trainer_work import REAL, prepare

VALUE = {"scores.critic.learning_rate": 1e-4}
ARMS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "grpo": ("grpo", 8, {}),
    "ppo, 8 responses a prompt": ("ppo", 8, VALUE),
    "the same, with LoRA for the value": ("ppo", 8, {**VALUE, "scores.critic.lora": {"rank": 16}}),
    "ppo, 1 response a prompt": ("ppo", 1, VALUE),
}
"""The preset, responses to a prompt, and settings."""
COLUMNS = {
    "longest": ("longest response", "d"),
    "arm": ("run", ""),
    "responses": ("responses", "d"),
    "tokens": ("response tokens a step", ",.0f"),
    "seconds": ("step, CPU s", ".2f"),
    "rollout": ("rollout, CPU s", ".2f"),
    "mib": ("MiB", ",.0f"),
    "time": ("times the CPU s", ".2f"),
    "memory": ("times the MiB", ".2f"),
    "explained": ("explained", ".2f"),
}


class WatchValue(Watch):
    """Also the explained variance of the last step."""

    explained: float | None = None

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """The step ends here, and the next one begins."""
        super().stepped(step, metrics)
        self.explained = metrics.get("value/explained_variance")


def answer(work: str, arm: str, steps: int) -> dict[str, Any]:
    """One run: the medians of its steps but the first, and its peak memory."""
    preset, group, settings = ARMS[arm]
    watch = WatchValue()
    with tempfile.TemporaryDirectory() as folder:
        task = prepare(work, 64.0, Path(folder))
        responses = task.prompts * task.group
        rlobj.train(
            preset,
            model=task.policy,
            data=task.problems,
            reward=task.reward,
            out=Path(folder) / "run",
            settings={
                "model.dtype": "float32",
                "model.chat_template": False,
                "data.template": "{prompt}",
                "objective.penalties": [],
                "sampling.prompts_per_step": responses // group,
                "sampling.group_size": group,
                "sampling.max_tokens": task.max_tokens,
                "training.steps": steps,
                "training.updates_per_step": 1,
                "training.passes": 1,
                "training.learning_rate": task.learning_rate,
                "training.skip_inactive": False,
                "training.threads": 1,
                **settings,
                **QUIET,
            },
            callbacks=[watch],
        )
    step = medians(watch.steps[1:])
    return {
        "responses": responses,
        "tokens": median(numbers["length"] for numbers in watch.steps[1:]) * responses,
        "seconds": step["seconds"],
        "rollout": step["rollout"],
        "mib": peak_mib(),
        "explained": watch.explained,
    }


def measure(quick: bool, rounds: int) -> Table:
    """Every arm with responses of two lengths, in turn."""
    steps, works = 4, ("real-6",) if quick else ("real-6", "real-60")
    questions = {
        (work, arm): {"work": work, "arm": arm, "steps": steps} for work in works for arm in ARMS
    }
    results = asked("benchmarks.critic", questions, rounds)
    rows: list[dict[str, Any]] = []
    for (work, arm), answers in results.items():
        base, explained = results[work, "grpo"], answers[-1].pop("explained")
        numbers = medians(
            [{k: v for k, v in result.items() if v is not None} for result in answers]
        )
        ratios = {"time": ratio(answers, base), "memory": ratio(answers, base, "mib")}
        rows.append(
            {"longest": REAL[work][1], "arm": arm, **numbers, **ratios, "explained": explained}
        )
    return Table("critic", COLUMNS, rows, {"rounds": rounds, "steps": steps})


if __name__ == "__main__":
    main(measure, answer)
