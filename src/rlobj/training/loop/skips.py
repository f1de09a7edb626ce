"""Updates and steps that change nothing: counted, kept for a second look, and limited."""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from safetensors.torch import save

from rlobj.base.errors import RunError
from rlobj.base.files import write_whole
from rlobj.base.paths import step_name
from rlobj.objectives.statistics import Comm
from rlobj.ranks import together
from rlobj.runs.run_folder import RunFolder
from rlobj.training.rollouts.sharding import MiniBatch

logger = logging.getLogger(__name__)


@dataclass
class Skips:
    """Counts updates that were not finite and steps without an update, each in a row.

    Attributes:
        run: the folder nonfinite/ in it holds the mini-batches that were not finite.
        comm: the process group.
        limit: the number in a row at which the run stops.
        nonfinite: updates in a row that were not finite.
        idle: steps in a row without an update.
    """

    run: RunFolder
    comm: Comm
    limit: int
    nonfinite: int = 0
    idle: int = 0

    def state(self) -> dict[str, int]:
        """The counts, for a checkpoint."""
        return {"nonfinite": self.nonfinite, "idle": self.idle}

    def restore(self, state: Mapping[str, int]) -> None:
        """Set the counts that `state` returned."""
        self.nonfinite, self.idle = state.get("nonfinite", 0), state.get("idle", 0)

    def count_update(
        self, step: int, index: int, batch: MiniBatch, metrics: Mapping[str, float]
    ) -> None:
        """Count an update. If it was not finite, each rank keeps its part of the mini-batch.

        Args:
            step: from 0.
            index: the update in the step, from 0.
            batch: the mini-batch.
            metrics: of the update; `train/grad_norm` is NaN if it was not finite.

        Raises:
            RunError: too many in a row.
        """
        if not math.isnan(metrics["train/grad_norm"]):
            self.nonfinite = 0
            return
        self.nonfinite += 1
        name = f"nonfinite/{step_name(step + 1)}-update-{index + 1}-rank-{self.comm.rank}"
        named = [field.name for field in fields(batch.table) if field.init]
        columns = {name: getattr(batch.table, name) for name in named}
        tensors = {key: c for key, c in columns.items() if isinstance(c, torch.Tensor)}
        rest = {key: c for key, c in columns.items() if key not in tensors and c is not None}
        rest["columns"] = {name: column.tolist() for name, column in batch.table.columns.items()}
        with together(self.comm, "keeping a batch that was not finite"):
            (self.run.path / "nonfinite").mkdir(exist_ok=True)
            ids = [(list(prompt), list(response)) for prompt, response in batch.sequences]
            text = json.dumps({"columns": rest, "sequences": ids})
            write_whole(self.run.path / f"{name}.json", text.encode())
            whole = {key: c.detach().cpu().clone().contiguous() for key, c in tensors.items()}
            write_whole(self.run.path / f"{name}.safetensors", save(whole))
        name += ".safetensors"
        logger.warning("step %d: an update was not finite and was skipped; see %s", step + 1, name)
        if self.nonfinite >= self.limit:
            raise RunError(
                f"log-probs, loss or gradient were not finite in {self.nonfinite} updates in a "
                f"row. Lower training.learning_rate. The last batch is in {self.run.path / name}",
                finding="update-too-large",
            )

    def count_step(
        self, step: int, metrics: Mapping[str, float], undecided: Mapping[str, int]
    ) -> None:
        """Count a step.

        Args:
            step: from 0.
            metrics: of the step; `train/updates` is absent if it made none.
            undecided: responses without a verdict, by reason.

        Raises:
            RunError: too many steps without an update in a row.
        """
        if metrics["train/skipped_updates"] < metrics.get("train/updates", 0.0):
            self.idle = 0
            return
        self.idle += 1
        reasons = "".join(f"; {n} {why}" for why, n in undecided.items())
        facts = (
            f"step {step + 1} changed nothing: {metrics['reward/groups']:.0f} groups kept, "
            f"{metrics['sampling/dead_groups']:.0f} without signal, "
            f"{metrics['reward/undecided']:.0f} responses undecided{reasons}"
        )
        logger.warning(facts)
        if self.idle >= self.limit:
            raise RunError(
                f"{self.idle} steps in a row without an update; {facts}. Look at the rewards "
                f"in {self.run.path / 'samples'}; sampling.dynamic.by=reward keeps every group "
                "whose rewards differ.",
                finding=None if metrics["reward/groups"] else "no-signal",
            )
