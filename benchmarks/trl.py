"""rlobj inside TRL's GRPOTrainer: the same gradient as rlobj alone, and what it costs.

Each row is a training end to end: TRL samples with `generate`, and the one update per rollout is
made of micro-batches, on one process or two. `gradient` is the relative distance of the first
update's gradient from that of rlobj alone, which scores the recorded responses in one batch with
its own forward pass, plans and differentiates. CPU seconds are of a step end to end, on the first
process. The parts of a step that rlobj adds are the plan, the forward pass without gradient that
rules on the policy need if an update has several micro-batches, and the record, with a full table
of each step.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import in_trl
from benchmarks.harness import Table, ask, main, note
from benchmarks.in_trl import flat_gradient, load_policy
from benchmarks.trainer_work import Work, prepare
from rlobj import TokenBatch, read_tables
from rlobj.scoring import PolicyScorer

PRESETS = ("dapo-loss", "stapo", "20-entropy")
PARTS = ("plan", "forward", "record")
KNOWN = ("lengths", "groups", "ids", "rewards", "advantages")
"""Columns of the recorded update that are the same when it is scored again."""
PROMPTS, GROUP, LENGTH = 4, 8, 32.0
"""Of a rollout; the median of the lengths of responses, in tokens."""


def answer(
    size: int, steps: int, folder: str, objectives: Sequence[str], ranks: int = 1
) -> dict[str, dict[str, Any]]:
    """One run with each objective in this process.

    Args:
        size: responses of a micro-batch.
        steps: rollouts, with one update each.
        folder: of the runs, the same on all processes.
        objectives: presets.
        ranks: number of processes.

    Returns:
        CPU seconds of each step but the first, and of its parts; and of the first gradient the norm
        and the relative distance from that of rlobj alone.
    """
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as own:
        work = prepare("skewed", LENGTH, Path(own))
        for objective in objectives:
            out = Path(folder) / objective
            trainer, seconds, gradients = training(objective, work, size, steps, out, ranks)
            trainer.train()
            parts = {name: [step[name] for step in seconds[1:]] for name in ("step", *PARTS)}
            found[objective] = parts
            alone = gradient_alone(load_policy(work.policy), out / "_rlobj")
            distance = float((gradients[0] - alone).norm() / alone.norm())
            parts |= {"norm": float(alone.norm()), "difference": distance}
    return found


def training(
    objective: str, work: Work, size: int, steps: int, out: Path, ranks: int
) -> tuple[Any, list[Any], list[torch.Tensor]]:
    """A trainer, and lists for the seconds of each step and the gradient of each update."""
    from datasets import Dataset
    from transformers import TrainerCallback

    from rlobj.integrations.trl import ObjectiveTrainer

    seconds: list[Any] = []
    gradients: list[torch.Tensor] = []

    class Marks(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            seconds.append(defaultdict(float, step=-time.process_time()))

        def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
            gradients.append(flat_gradient(model))

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds[-1]["step"] += time.process_time()

    @contextmanager
    def timed(part: str) -> Any:
        start = time.process_time()
        yield
        seconds[-1][part] += time.process_time() - start

    class Timed(ObjectiveTrainer):
        def _plan(self, window: Any) -> None:
            with timed("plan"):
                super()._plan(window)
                seconds[-1]["plan"] -= seconds[-1]["forward"]

        def _forward(self, *arguments: Any, **named: Any) -> Any:
            if torch.is_grad_enabled():
                return super()._forward(*arguments, **named)
            with timed("forward"):
                return super()._forward(*arguments, **named)

    settings: dict[str, Any] = {"max_steps": steps, "learning_rate": work.learning_rate}
    settings |= {"max_grad_norm": 1e9, "seed": 0, "logging_steps": 1}
    settings |= in_trl.batches(size, PROMPTS * GROUP // ranks, GROUP, work.max_tokens)
    trainer = in_trl.make_trainer(
        Timed,
        work.policy,
        out,
        settings,
        objective=objective,
        output={"tables_every": 1},
        reward_funcs=in_trl.reward_function(work.reward),
        train_dataset=Dataset.from_json(work.problems),
    )
    record = trainer._recorder.on_step_end

    def recorded(*arguments: Any, **more: Any) -> None:
        with timed("record"):
            record(*arguments, **more)

    trainer._recorder.on_step_end = recorded
    trainer.add_callback(Marks())
    return trainer, seconds, gradients


def gradient_alone(model: Any, run: Path) -> torch.Tensor:
    """The gradient of the first recorded update by rlobj alone, in one batch."""
    [update] = read_tables(run, [1])
    scorer = PolicyScorer(model)
    inputs = scorer.collate(update.sequences, torch.device("cpu"))
    scores = scorer(*inputs, entropy=True)
    old = update.table
    columns = {name: getattr(old, name) for name in KNOWN}
    table = TokenBatch(**columns, logprobs=scores.logprobs, entropy=scores.entropy)
    plan = update.objective.plan([table], update.state)
    update.objective.loss(table, plan).loss.backward()
    return flat_gradient(model)


def measure(quick: bool, rounds: int) -> Table:
    """Every objective, micro-batch size and number of processes."""
    steps, rows = (4 if quick else 5), []
    sizes = [(32, 1), (8, 1), (16, 2)] if quick else [(32, 1), (8, 1), (1, 1), (16, 2), (4, 2)]
    for size, ranks in sizes:
        note(f"micro-batches of {size}, {ranks} processes")
        every = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                question = {"size": size, "steps": steps, "folder": folder, "ranks": ranks}
                question["objectives"] = PRESETS
                every.append(ask("benchmarks.trl", question, ranks)[0])
        for objective in PRESETS:
            found = [each[objective] for each in every]
            row = {"objective": objective, "micro_batch": size, "processes": ranks}
            row["difference"] = max(each["difference"] for each in found)
            row["seconds"] = median(s for each in found for s in each["step"])
            for part in PARTS:
                row[part] = median(s for each in found for s in each[part]) / row["seconds"]
            rows.append(row)
    return Table(
        "trl",
        {
            "objective": ("objective", ""),
            "micro_batch": ("micro-batch", "d"),
            "processes": ("processes", "d"),
            "difference": ("gradient", ".1e"),
            "seconds": ("CPU s a step", ".3g"),
            "plan": ("plan", ".1%"),
            "forward": ("extra forward", ".1%"),
            "record": ("record", ".1%"),
        },
        rows,
        {"steps": steps, "responses": PROMPTS * GROUP, "median length": LENGTH, "rounds": rounds},
        labels=("objective", "micro_batch", "processes"),
        bars=("plan", "forward", "record"),
    )


if __name__ == "__main__":
    main(measure, answer)
