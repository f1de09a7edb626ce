"""The record of a run in TRL: what `inspect`, `replay`, `diagnose` and `report` read."""

import itertools
import math
from collections.abc import Mapping
from operator import mul
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rlobj.base.targets import object_text
from rlobj.integrations.rewards import accuracy_reward
from rlobj.integrations.run_record import RunRecord, observed_update
from rlobj.integrations.trl.progress import Window
from rlobj.integrations.trl.rollout import sequences
from rlobj.runs.layout import is_run
from rlobj.runs.observed import ObservedUpdate
from rlobj.settings.run_config import RunConfig

_LOGGED = {
    "response/truncated": "completions/clipped_ratio",
    "turns/at_turns": "rlobj/turns/at_turns",
    "turns/at_tokens": "rlobj/turns/at_tokens",
    "tools/calls": "tools/call_frequency",
    "tools/errors": "tools/failure_frequency",
}


class RecordEvents(TrainerCallback):
    """Gives each update of an ObjectiveTrainer to a RunRecord.

    A step of the record ends where an update and a rollout of TRL end together. Unlike the other
    events, `record.close` may be called by one process alone.

    Args:
        trainer: the ObjectiveTrainer.
        folder: of the record; None = the first free one of `_rlobj`, `_rlobj-2`, ... in the output
            folder. `push_to_hub` uploads no files whose names begin so.
        preset: the name of the preset, or None.
        output: settings of `RunConfig.output`.

    Attributes:
        record: of the run; None before it begins.
        saved: the state of the record in the checkpoint from which the run continues; None = a new
            run.
        grad_norm: of the update in progress.
        learning_rate: of the update in progress.
    """

    def __init__(
        self, trainer: Any, folder: Path | None, preset: str | None, output: Mapping[str, Any]
    ) -> None:
        self._trainer, self._folder = trainer, folder
        self._preset, self._output = preset, dict(output)
        self.record: RunRecord | None = None
        self.saved: dict[str, Any] | None = None
        self.grad_norm = self.learning_rate = math.nan

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the folder."""
        trainer = self._trainer
        config = described(trainer, self._preset, state.max_steps, self._output)
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        folder = self._folder or Path(args.output_dir) / self._name(Path(args.output_dir))
        self.record = RunRecord(folder, config, tokenizer, trainer._comm, self.saved)

    def _name(self, parent: Path) -> str:
        """The name of the record's folder: that of the checkpoint, or the first free one."""
        names = itertools.chain(["_rlobj"], (f"_rlobj-{i}" for i in itertools.count(2)))
        free = next(name for name in names if not is_run(parent / name))
        return self._trainer._comm.broadcast(self.saved["folder"] if self.saved else free)

    def on_pre_optimizer_step(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        """Keep the learning rate of this update, before the scheduler sets that of the next."""
        self.learning_rate = float(optimizer.param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the update, and the step if its rollout has ended."""
        trainer, record = self._trainer, self.record
        progress = trainer._progress
        if record is None or progress.window is None:
            return
        before = {**progress.state, "update": progress.state["update"] - 1}
        metrics = {**progress.window.metrics, "train/grad_norm": self.grad_norm}
        metrics |= self._of_rollouts(max(len(progress.window.rollouts), 1))
        measured = record.update(_observed(progress.window, before), metrics)
        trainer._log_metrics({name: x for name, x in measured.items() if name not in metrics})
        if trainer._step % (args.steps_per_generation * trainer.num_iterations) == 0:
            self._end_step(record)

    def _of_rollouts(self, count: int) -> dict[str, float]:
        """What TRL logs of the last rollouts, as the record names it."""
        logged, size = self._trainer._metrics["train"], self._trainer.args.generation_batch_size
        last = {name: logged[key][-count:] for name, key in _LOGGED.items() if logged.get(key)}
        averages = {name: sum(values) / len(values) for name, values in last.items()}
        if "tools/calls" in last:  # TRL has calls per response, and failures per call
            calls = [frequency * size for frequency in last["tools/calls"]]
            averages["tools/calls"] = sum(calls)
            averages["tools/errors"] = sum(map(mul, calls, last["tools/errors"]))
            limits = ("turns/at_turns", "turns/at_tokens")
            averages["response/truncated"] = sum(averages[name] for name in limits)
        return averages

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the last step, whose rollout may have more micro-batches than were trained on."""
        assert self.record is not None
        if self.record.updates:
            self._end_step(self.record)
        self.saved = self.record.state()

    def _end_step(self, record: RunRecord) -> None:
        metrics = {"train/learning_rate": self.learning_rate}
        functions, rewards = self._trainer.reward_funcs, self._trainer._progress.rewards
        if accuracy_reward in functions:  # of functions of TRL, this one alone says what is right
            right = float(rewards[:, functions.index(accuracy_reward)].nanmean())
            metrics |= {} if math.isnan(right) else {"reward/accuracy": right}
        record.end_step(metrics)


def described(
    trainer: Any, preset: str | None, max_steps: int, output: Mapping[str, Any]
) -> RunConfig:
    """The configuration of a run in TRL, as far as rlobj has such settings."""
    args, group = trainer.args, trainer.num_generations
    rollout = args.steps_per_generation * trainer.num_iterations
    window = args.gradient_accumulation_steps
    # An update may cover parts of two rounds; then they are no passes.
    rounds = 1 if args.steps_per_generation % window else trainer.num_iterations
    groups = args.generation_batch_size // group * math.ceil(window / rollout)
    schedule = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    sampling = {"temperature": args.temperature, "max_tokens": args.max_completion_length}
    training = {
        "steps": math.ceil(max_steps * min(window, rollout) / rollout),
        "updates_per_step": min(math.ceil(rollout / rounds / window), groups),
        "passes": max(rounds // len(trainer.objective.phases), 1),
        "learning_rate": args.learning_rate or None,  # 0 is no value of rlobj's settings
        "max_grad_norm": args.max_grad_norm or None,
        "schedule": schedule if schedule in ("constant", "linear", "cosine") else None,
        "weight_decay": args.weight_decay,
    }
    settings: dict[str, Any] = {
        "preset": preset,
        "objective": trainer.objective,
        "columns": trainer._own,
        "model": {
            "name": getattr(trainer.model.config, "_name_or_path", "") or object_text("model")
        },
        "data": {"source": object_text("rows")},
        "sampling": {**_without_none(sampling), "group_size": group, "prompts_per_step": groups},
        "training": _without_none(training),
        "evaluation": {"every": 0},
        "output": {"samples_every": 0, **output},
        "seed": args.seed,
    }
    if trainer.tools:
        settings["environment"] = {"tools": [object_text(tool.__name__) for tool in trainer.tools]}
        if args.max_tool_calling_iterations is not None:
            settings["environment"]["max_turns"] = args.max_tool_calling_iterations + 1
    if trainer.objective.needs.rewards:
        settings["rewards"] = [
            {"kind": "custom", "name": name, "weight": weight, "target": object_text(name)}
            for name, weight in zip(
                trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True
            )
        ]
    return RunConfig(**settings)


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _observed(window: Window, state: Mapping[str, Any]) -> ObservedUpdate:
    assert window.plan is not None
    responses = [response for inputs in window.inputs for response in sequences(inputs)]
    scores = [measured.scores for measured in window.measured]
    return observed_update(window.phase, state, window.tables, window.plan, responses, scores)
