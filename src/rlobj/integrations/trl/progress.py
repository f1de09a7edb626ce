"""What an ObjectiveTrainer remembers between the calls of TRL."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rlobj.base.errors import BatchError, ConfigError, reported
from rlobj.base.files import write_whole
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import Plan
from rlobj.objectives.tokens import TokenBatch
from rlobj.runs.loss_metrics import MicroBatchResult

STATE_FILE = "rlobj.json"
"""The file in TRL's checkpoints with the objective's state."""

Inputs = dict[str, Any]
"""TRL's inputs of one micro-batch."""


@dataclass
class Window:
    """One update: the micro-batches of a window of gradient accumulation.

    Attributes:
        inputs: TRL's inputs of each micro-batch.
        rollouts: the micro-batches of each rollout that was sampled for this window.
        phase: of the objective.
        first: the number of the first micro-batch in TRL's count.
        scored: log-probs and entropies under the present weights, [B, T], by the id of the inputs.
        plan: of the update; None = not made yet.
        tables: the micro-batches as they were planned.
        metrics: of the update, when it has ended.
        measured: what the losses of the micro-batches so far measured.
        error: the first loss that was not finite.
    """

    inputs: list[Inputs]
    rollouts: list[list[Inputs]]
    phase: Objective
    first: int = 0
    scored: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    plan: Plan | None = None
    tables: list[TokenBatch] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    measured: list[MicroBatchResult] = field(default_factory=list)
    error: BatchError | None = None

    @property
    def position(self) -> int:
        """The place of the micro-batch whose loss is due."""
        return len(self.measured)

    @property
    def due(self) -> Inputs | None:
        """The micro-batch whose loss is due; None after the last one."""
        return self.inputs[self.position] if self.position < len(self.inputs) else None

    def samples(self, inputs: Inputs | None) -> bool:
        """Whether these inputs were sampled for this window, from the policy as it is now."""
        return any(inputs is row for rollout in self.rollouts for row in rollout)


@dataclass
class Progress:
    """What an ObjectiveTrainer remembers between the calls of TRL.

    Attributes:
        state: the objective's controllers, and "update", the number of updates done.
        turns: a rollout had a mask of tool output, on any process: responses have turns.
        rows: number of responses that were sampled, over all processes.
        batches: the prompts of the micro-batches of the window in progress.
        window: the window in progress; None = the next call opens one.
        rewards: of the last rollouts of one update, over all processes, [B, K].
    """

    state: dict[str, Any]
    turns: bool = False
    rows: int = 0
    batches: list[Any] = field(default_factory=list)
    window: Window | None = None
    rewards: Tensor | None = None

    def write(self, checkpoint: Path, record: Any) -> None:
        """Write what a resumed run needs, beside the state of its record."""
        saved = {"state": self.state, "rows": self.rows, "record": record}
        write_whole(checkpoint / STATE_FILE, json.dumps(saved).encode())

    def read(self, checkpoint: Path, objective: Objective) -> Any:
        """Continue from what `write` has written; returns the state of the record.

        Raises:
            ConfigError: the file is missing or damaged, or the objective has other controllers.
        """
        path, damaged = checkpoint / STATE_FILE, (OSError, ValueError, KeyError, TypeError)
        advice = ": resume from a checkpoint of an ObjectiveTrainer"
        with reported(ConfigError, f"{path} cannot be read", *damaged, advice=advice):
            saved = json.loads(path.read_text(encoding="utf-8"))
            state, rows, record = dict(saved["state"]), int(saved["rows"]), saved["record"]
        if others := {*objective.init()} ^ (state.keys() - {"update"}):
            raise ConfigError(f"{path} is of an objective with other controllers: {sorted(others)}")
        self.state, self.rows = state, rows
        return record
