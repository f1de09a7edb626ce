"""TRL's side of `trainer`: the same work through `trl.GRPOTrainer`, set to the same objective.

Its defaults are kept where they do not change what is computed: transformers' `generate`, the
fused head, the scoring pass left out since samples are fresh. Set: float32 instead of bfloat16
arithmetic, no recomputed activations, nothing reported but the trainer's own log.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import tempfile
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from rlobj.base.targets import import_target
from rlobj.benchmarking.processes import peak_mib
from rlobj.benchmarking.trainer_work import BETAS, CLIP, EPSILON, Asked, Work
from rlobj.data import DataConfig, ProblemStream, load_problems

__all__ = ["answer"]


def answer(asked: Asked, folder: Path) -> list[dict[str, Any]]:
    """What each seed's run measured: its steps, and the peak of memory above the loaded policy."""
    work = asked.prepare(folder)
    return [_run(work, asked, seed, folder / f"run-{seed}") for seed in asked.seeds]


def _run(work: Work, asked: Asked, seed: int, out: Path) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    trained_by: Any = import_module("trl").GRPOTrainer

    class Timed(trained_by):
        """Its own rollouts, with a clock around them: drawing, grading, advantages."""

        rollout = 0.0

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            began = time.process_time()
            try:
                return super()._generate_and_score_completions(inputs)
            finally:
                self.rollout += time.process_time() - began

    class Watch(TrainerCallback):
        """When each step begins; what is logged after one belongs to it."""

        def __init__(self) -> None:
            self.marks: list[tuple[float, float]] = []
            self.loaded = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.loaded = peak_mib(reset=True)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.marks.append((time.process_time(), trainer.rollout))

        on_train_end = on_step_begin

    torch.set_num_threads(1)
    watch = Watch()
    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(work.policy, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(work.policy),
        reward_funcs=_reward(work.reward),
        args=_settings(work, asked, seed, out),
        train_dataset=Dataset.from_list(_prompts(work, asked.steps, seed)),
        callbacks=[watch],
    )
    _same_objective(trainer)
    trainer.train()
    logs = [line for line in trainer.state.log_history if "reward" in line]
    steps = [
        {
            "seconds": end[0] - start[0],
            "rollout": end[1] - start[1],
            "reward": line["reward"],
            "length": line["completions/mean_length"],
            "longest": line["completions/max_length"],
        }
        for (start, end), line in zip(itertools.pairwise(watch.marks), logs, strict=True)
    ]
    return {"steps": steps, "mib": peak_mib() - watch.loaded}


def _settings(work: Work, asked: Asked, seed: int, out: Path) -> Any:
    rows = min(asked.micro_batch, work.samples)
    return import_module("trl").GRPOConfig(
        output_dir=str(out),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=work.samples // rows,
        num_generations=work.group,
        max_completion_length=work.max_tokens,
        max_steps=asked.steps,
        temperature=1.0,
        loss_type="dapo",
        beta=0.0,
        epsilon=CLIP[0],
        epsilon_high=CLIP[1],
        scale_rewards="group",
        learning_rate=work.learning_rate,
        lr_scheduler_type="constant",
        warmup_steps=0,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=0.0,
        max_grad_norm=1.0,
        shuffle_dataset=False,  # the prompts come in the order that ours draws them in
        seed=seed,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )


def _prompts(work: Work, steps: int, seed: int) -> list[dict[str, str]]:
    """Every step's prompts, in the order that a run of ours with this seed draws them."""
    source = DataConfig(source=work.problems, template="{prompt}")
    stream = ProblemStream(load_problems(source, "train"), seed=seed)
    drawn = [problem for _ in range(steps) for problem in stream.next(work.prompts)]
    return [{"prompt": problem.prompt, "answer": problem.answer} for problem in drawn]


def _reward(target: str) -> Any:
    function = import_target(target)

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [function(*pair) for pair in zip(completions, answer, strict=True)]

    return reward


def _same_objective(trainer: Any) -> None:
    """What the settings above must have come to."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)  # it prints every step's log
    assert trainer.loss_type == "dapo"
    assert trainer.beta == 0.0
    assert trainer.num_iterations == 1
    assert trainer.importance_sampling_level == "token"
    assert trainer.args.steps_per_generation == trainer.args.gradient_accumulation_steps
    assert EPSILON == 1e-4  # written in its code


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(answer(Asked.parse(sys.argv[1]), Path(place))))
