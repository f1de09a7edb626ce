"""Whole training runs beside TRL's GRPOTrainer: samples per second, and the same learning.

Both get the same policy folder, the same prompts in the same order, the same reward function, the
same objective (DAPO's loss) and transformers' model, each in a process of its own, in turn. Each
draws responses in its own way: rlobj in its own loop over the model, TRL with `generate`.

Works: a random GPT-2 with prompts of 16 tokens and responses of 64 (equal) or of lognormal lengths
(skewed), or with prompts of 96 and responses of 16 (chat); the embedded policy, which learns to add
(learning); SmolLM2-135M-Instruct with sums after two examples, prompts of 28 tokens and responses
of 6, 60 and 120 at most (real-6, real-60, real-120).

CPU seconds are of a step at one thread; clock s are the step's by the clock. The rollout is drawing
and grading responses, the update is the rest of the step, with logging. Left out: tokens that rlobj
does not train, because all rewards of their group are equal. Peak memory is above the loaded
policy, and pandas, which both sides import if it is installed, is loaded before. tokens/s allows
for the lengths of the responses that each trainer draws. rlobj's speed: how many times as fast
rlobj is, the median over rounds run in turn. Curves apart: mean distance of the reward curves
(means of 10 steps) of rlobj and TRL with the same prompts; seeds apart: of two seeds of this
trainer.

    python -m benchmarks.trainer [--works WORK ...] [--full] [--rounds K] [--out DIR]
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any

import rlobj
from benchmarks import in_trl
from benchmarks.harness import Table, ask, main, medians, note, peak_mib, ratio
from benchmarks.made_up import QUIET
from benchmarks.real_model import real_model
from benchmarks.trainer_work import REAL, Work, prepare
from rlobj.data import DataConfig, ProblemStream, load_problems
from rlobj.settings.training import TrainingConfig
from rlobj.training import Callback

OURS, TRL = "rlobj", "TRL GRPOTrainer"
BETAS, CLIP, EPSILON = (0.9, 0.95), (0.2, 0.28), 1e-4
"""AdamW's; the ratio's bounds, with one update a rollout; added to a group's standard deviation."""
SAMPLES = {"equal": 64, "skewed": 64, "chat": 64, "learning": 256}
SAMPLES |= {work: 8 * prompts for work, (prompts, _) in REAL.items()}
"""Responses of a step, by work."""
CURVES = ("learning", "real-6")
"""Works whose rewards rise while they are measured."""
WINDOW = 10
"""Steps that a reward is averaged over."""


def answer(
    side: str, work: str, steps: int, micro_batch: int, seed: int, length: float = 64.0
) -> dict[str, Any]:
    """One run: facts of each step but the first, and the peak memory above the loaded policy.

    Args:
        side: the trainer.
        work: a key of `SAMPLES`.
        steps: rollouts, one optimizer update each.
        micro_batch: size of a forward pass of the update: tokens of rlobj's, responses of TRL's.
        seed: of the data order and of sampling.
        length: median of skewed lengths, in tokens.
    """
    if find_spec("pandas"):  # TRL imports it at once, and pyarrow at its first table
        import_module("pandas")
    with tempfile.TemporaryDirectory() as folder:
        given = prepare(work, length, Path(folder))
        run = {OURS: run_rlobj, TRL: run_trl}[side]
        return run(given, steps, micro_batch, seed, Path(folder) / "run")


# rlobj.


class Watch(Callback):
    """Seconds of each step: of the CPU, of the clock, and of its rollout: sampling and grading."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.loaded = self._began = self._clock = self._since = self._rollout = 0.0
        self._sampling = False

    def started(self, facts: Mapping[str, str]) -> None:
        """The policy is loaded; memory from here on is the training's."""
        self.loaded = peak_mib(reset=True)
        self._began, self._clock = time.process_time(), time.perf_counter()

    def phase(self, name: str) -> None:
        """Count the time since the last phase if it was sampling."""
        now = time.process_time()
        self._rollout += now - self._since if self._sampling else 0.0
        self._sampling, self._since = name in ("sampling", "grading"), now

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """The step ends here, and the next one begins."""
        now, clock = time.process_time(), time.perf_counter()
        self.steps.append(
            {
                "seconds": now - self._began,
                "clock": clock - self._clock,
                "rollout": self._rollout,
                "reward": metrics["reward/mean"],
                "length": metrics["response/length_mean"],
                "skipped": metrics["tokens/skipped_share"],
            }
        )
        self._began, self._clock, self._rollout = now, clock, 0.0


def run_rlobj(work: Work, steps: int, micro_batch: int, seed: int, out: Path) -> dict[str, Any]:
    """A run of rlobj: DAPO's loss, float32, no evaluation and no tables of samples."""
    watch = Watch()
    rlobj.train(
        "dapo-loss",
        model=work.policy,
        data=work.problems,
        reward=work.reward,
        out=out,
        settings={
            "model.dtype": "float32",
            "data.template": "{prompt}",
            "model.chat_template": False,
            "objective.advantage": {"kind": "group_normalized", "epsilon": EPSILON},
            "objective.surrogate": {"kind": "clip", "low": CLIP[0], "high": CLIP[1]},
            "sampling.prompts_per_step": work.prompts,
            "sampling.group_size": work.group,
            "sampling.max_tokens": work.max_tokens,
            "training.steps": steps,
            "training.micro_batch_tokens": micro_batch,
            "training.threads": 1,
            "training.learning_rate": work.learning_rate,
            "training.betas": BETAS,
            "seed": seed,
            **QUIET,
        },
        callbacks=[watch],
    )
    return {"steps": watch.steps, "mib": peak_mib() - watch.loaded}


# TRL.


def run_trl(work: Work, steps: int, micro_batch: int, seed: int, out: Path) -> dict[str, Any]:
    """A run of TRL's GRPOTrainer with its defaults, apart from what makes the work the same."""
    from datasets import Dataset
    from transformers import TrainerCallback

    marks: list[tuple[float, float]] = []
    graded: list[float] = []
    loaded: list[float] = []
    # The rollout ends when it is graded.
    reward = in_trl.reward_function(work.reward, lambda: graded.append(time.process_time()))

    class Watching(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            loaded.append(peak_mib(reset=True))

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            marks.append((time.process_time(), time.perf_counter()))

        on_train_end = on_step_begin

    trl: Any = import_module("trl")
    rows, samples = min(micro_batch, work.prompts * work.group), work.prompts * work.group
    settings = {
        **in_trl.batches(rows, samples, work.group, work.max_tokens),
        "max_steps": steps,
        "temperature": 1.0,
        "loss_type": "dapo",
        "beta": 0.0,
        "epsilon": CLIP[0],
        "epsilon_high": CLIP[1],
        "scale_rewards": "group",
        "learning_rate": work.learning_rate,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "shuffle_dataset": False,  # the prompts are in the order that rlobj draws them in
        "seed": seed,
        "logging_steps": 1,
    }
    problems = load_problems(DataConfig(source=work.problems, template="{prompt}"), "train")
    stream = ProblemStream(problems, seed=seed)
    prompts = [problem for _ in range(steps) for problem in stream.next(work.prompts)]
    data = Dataset.from_list([{"prompt": p.prompt, "answer": p.answer} for p in prompts])
    given = {"reward_funcs": reward, "train_dataset": data, "callbacks": [Watching()]}
    trainer = in_trl.make_trainer(trl.GRPOTrainer, work.policy, out, settings, **given)
    trainer.train()
    logs = [line for line in trainer.state.log_history if "reward" in line]
    facts = [
        {
            "seconds": end - start,
            "clock": clock_end - clock_start,
            "rollout": drawn - start,
            "reward": line["reward"],
            "length": line["completions/mean_length"],
        }
        for ((start, clock_start), (end, clock_end)), drawn, line in zip(
            itertools.pairwise(marks), graded, logs, strict=True
        )
    ]
    return {"steps": facts, "mib": peak_mib() - loaded[0]}


# Side by side.


def measure(quick: bool, rounds: int, works: Sequence[str] = tuple(SAMPLES)) -> Table:
    """rlobj and, if it is installed, TRL on some works. Rounds are of random policies only."""
    tokens, length = TrainingConfig().micro_batch_tokens, 32.0 if quick else 64.0
    timed = {"equal": (64, 32), "skewed": (16, 64, 32, 8), "chat": (64, 32)}
    learned = {"learning": (60, 2), "real-6": (12, 1), "real-60": (3, 1), "real-120": (3, 1)}
    if not quick:
        learned |= {"learning": (100, 3), "real-6": (12, 2)}
    questions: list[dict[str, Any]] = []
    for seed, (work, rows) in itertools.product(range(rounds), timed.items()):
        some = {"work": work, "steps": 8, "seed": seed, "length": length}
        questions.append({**some, "side": OURS, "micro_batch": tokens})
        sizes = rows[:1] if quick else rows
        questions += [{**some, "side": TRL, "micro_batch": count} for count in sizes]
    for work, (steps, seeds) in learned.items():
        for seed in range(seeds):
            some = {"work": work, "steps": steps, "seed": seed}
            questions.append({**some, "side": OURS, "micro_batch": tokens})
            questions.append({**some, "side": TRL, "micro_batch": SAMPLES[work]})
    questions = [question for question in questions if question["work"] in works]
    if find_spec("trl") is None:
        note("TRL is not installed: pip install -r benchmarks/peers-requirements.txt")
        questions = [question for question in questions if question["side"] == OURS]
    if any(question["work"] in REAL for question in questions):
        try:
            real_model()  # made now if it is not there: nothing of that is measured
        except (ConnectionError, ImportError) as error:
            note(f"works with SmolLM2 are left out: {error}")
            questions = [question for question in questions if question["work"] not in REAL]
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for question in questions:
        note(f"{question['work']}, {question['side']}, seed {question['seed']}")
        key = (question["work"], question["side"], question["micro_batch"])
        found.setdefault(key, []).extend(ask("benchmarks.trainer", question))
    return to_table(found, {"rounds": rounds, "median of skewed lengths": length})


def to_table(
    found: Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]], settings: dict[str, Any]
) -> Table:
    """The rows of some runs, by (work, trainer, micro-batch): rlobj first, then TRL's best."""
    rows = []
    for (work, side, micro_batch), runs in found.items():
        [ours] = (each for (w, s, _), each in found.items() if (w, s) == (work, OURS))
        rows.append(to_row(work, side, micro_batch, runs, ours))
    works = list(SAMPLES)
    rows.sort(key=lambda row: (works.index(row["work"]), row["side"] != OURS, row["seconds"]))
    return Table(
        "trainer",
        {
            "work": ("responses", ""),
            "side": ("trainer", ""),
            "micro_batch": ("micro-batch", ",d"),
            "samples": ("samples/s", ".3g"),
            "tokens": ("tokens/s", ",.0f"),
            "seconds": ("step s", ".3g"),
            "clock": ("clock s", ".3g"),
            "rollout": ("rollout s", ".3g"),
            "update": ("update s", ".3g"),
            "skipped": ("left out", ".1%"),
            "mib": ("MiB", ",.0f"),
            "ratio": ("rlobj's speed", ".2f"),
            "update_ratio": ("in the update", ".2f"),
            "apart": ("curves apart", ".3f"),
            "seeds_apart": ("seeds apart", ".3f"),
        },
        rows,
        settings,
        labels=("work", "side", "micro_batch"),
        bars=("seconds", "ratio"),
    )


def to_row(
    work: str,
    side: str,
    micro_batch: int,
    runs: Sequence[Mapping[str, Any]],
    ours: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Medians over runs; ratios are of runs with the same seed."""
    mine, base = ([_step_of(work, run) for run in some] for some in (runs, ours))
    row: dict[str, Any] = {"work": work, "side": side, "micro_batch": micro_batch}
    row |= medians(mine)
    row["samples"] = SAMPLES[work] / row["seconds"]
    if side != OURS:
        row |= {"ratio": ratio(mine, base), "update_ratio": ratio(mine, base, "update")}
    if work in CURVES:
        curves, others = ([_smooth(run) for run in some] for some in (runs, ours))
        row["curve"] = [mean(each) for each in zip(*curves, strict=True)]
        if side != OURS:
            row["apart"] = mean(map(_apart, curves, others))
        if len(curves) > 1:
            row["seeds_apart"] = mean(_apart(a, b) for a, b in itertools.combinations(curves, 2))
    return row


def _step_of(work: str, run: Mapping[str, Any]) -> dict[str, float]:
    """Means over the steps of a run, the first step aside: it warms up."""
    steps = run["steps"][1:]
    found = {key: mean(step[key] for step in steps) for key in steps[0]}
    found["update"] = found["seconds"] - found["rollout"]
    found["tokens"] = SAMPLES[work] * found["length"] / found["seconds"]
    return {**found, "mib": run["mib"]}


def _smooth(run: Mapping[str, Any]) -> list[float]:
    """The mean reward of each step and those before it, `WINDOW` at most."""
    rewards = [step["reward"] for step in run["steps"]]
    return [mean(rewards[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(rewards))]


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return mean(abs(a - b) for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    main(measure, answer, tuple(SAMPLES))
