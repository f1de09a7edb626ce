"""Runs of the program as tests start, kill and compare them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from forked import Forked, run_ranks, wait_until
from safetensors.torch import load_file

from rlobj.base.yaml import dump_yaml, load_yaml
from rlobj.runs.checkpoints import newest_checkpoint
from rlobj.runs.configuration import dump_config
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.run_config import RunConfig
from rlobj.settings.training import TrainingConfig
from rlobj.training.loop.inputs import CallerInputs
from rlobj.training.loop.opening import open_run
from rlobj.training.loop.step import run_step
from rlobj.training.loop.trainer import Trainer
from rlobj.training.resolving import RunRequest

QUICK = {
    "model.dtype": "float32",
    "sampling.engine": "transformers",
    "training.steps": 2,
    "sampling.prompts_per_step": 4,
    "sampling.group_size": 4,
    "sampling.max_tokens": 3,
    "training.learning_rate": 1e-3,
    "training.schedule": "constant",
    "evaluation.every": 0,
    "checkpoint.every": 2,
    "output.tables_every": 0,
}
ROWS = [{"prompt": f"{a},{b}=", "answer": str(max(a, b))} for a in range(4) for b in range(4)]
ROWS_TEMPLATE = {"data.template": "{prompt}"}
SCORE = """
def score(response, answer, **columns):
    return float(response == answer)
"""


def open_trainer(
    config: RunConfig, out: Path, inputs: CallerInputs | None = None, *, resume: bool = False
) -> AbstractContextManager[Trainer]:
    """A run that is ready for `run_step`; closed at the end of the `with` block."""
    return open_run(RunRequest(config, out, resumed=resume), inputs or CallerInputs())


def weights(run: Path) -> dict[str, torch.Tensor]:
    """The tensors of the newest checkpoint's model."""
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    files = sorted((checkpoint / "model").glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Equal names and bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest difference of any weight."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def metrics(run: Path) -> list[dict]:
    """metrics.jsonl without the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clock = ("time/", "tokens/per_second")
    return [{k: v for k, v in line.items() if not k.startswith(clock)} for line in lines]


def write_config(config: RunConfig, file: Path) -> Path:
    """The configuration as a --config file."""
    settings = load_yaml(dump_config(config))
    preset = settings.pop("preset")
    file.write_text(dump_yaml({"preset": preset, **settings}))
    return file


def program(words: Sequence[str | Path], log: Path, **variables: str) -> Forked:
    """`rlobj ...` in a process of its own, whatever it prints in a file."""
    with log.open("w") as file:
        return Forked(["-m", "rlobj_cli", *words], file, env={**os.environ, **variables})


def ranks(words: Sequence[str | Path], count: int = 2, code: int = 0, **variables: str) -> str:
    """`rlobj ...` in several processes, as torchrun starts them; what the first one printed."""
    return run_ranks(["-m", "rlobj_cli", *words], count, code, **variables)


def finish(process: Forked, log: Path, code: int = 0, seconds: int = 300) -> str:
    """Wait for the program and check its exit code; what it printed."""
    try:
        found = process.wait(seconds)
    finally:
        process.kill()
    text = log.read_text()
    assert found == code, text
    return text


def make_steps(config: RunConfig, run: Path, count: int, resume: bool = False) -> list[int]:
    """Make these steps and leave the run as a crash would; those that were sampled for."""
    sampled: list[int] = []
    with open_trainer(config, run, resume=resume) as trainer:
        collect = trainer.pipeline.collector.collect
        noted: Any = lambda step: sampled.append(step) or collect(step)  # noqa: E731
        trainer.pipeline.collector.collect = noted
        for _ in range(count):
            run_step(trainer)
    return sampled


def wait_for_step(run: Path, step: int, process: Forked, log: Path) -> None:
    """Until metrics.jsonl has the step."""

    def done() -> bool:
        return any(line["step"] >= step for line in RunFolder(run).lines())

    wait_until(done, 300, process, log)


def local_reward() -> Any:
    """A function that no other process can import."""

    def reward(response: str, answer: str, **columns: Any) -> float:
        return float(response[:1] == answer)

    return reward


def steps(path: Path) -> list[int]:
    return [line["step"] for line in RunFolder(path).lines() if "reward/mean" in line]


def optimizer_of(model: torch.nn.Module, training: TrainingConfig) -> torch.optim.AdamW:
    """The optimizer of a run, for a loop of a test's own."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=training.learning_rate,
        betas=training.betas,
        eps=training.adam_epsilon,
        weight_decay=training.weight_decay,
    )
