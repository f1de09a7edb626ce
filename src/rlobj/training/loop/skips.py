"""Updates and steps that change nothing: counted, and limited."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlobj.base.errors import RunError
from rlobj.training.rollouts.sharding import MiniBatch

logger = logging.getLogger(__name__)


@dataclass
class Skips:
    """Counts updates that were not finite and steps without an update, each in a row.

    Attributes:
        rank: of this process.
        limit: the number in a row at which the run stops.
        nonfinite: updates in a row that were not finite.
        idle: steps in a row without an update.
    """

    rank: int
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
        """Count an update.

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
        ids = [response.id for response in batch.responses]
        rows = f"responses {ids[0]} to {ids[-1]}" if ids else "no responses"
        where = f"step {step + 1}, update {index + 1}, rank {self.rank} with {rows}"
        logger.warning("%s: the update was not finite and was skipped", where)
        if self.nonfinite >= self.limit:
            raise RunError(
                f"log-probs, loss or gradient were not finite in {self.nonfinite} updates in a "
                f"row. Lower training.learning_rate. The last was {where}",
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
                f"{self.idle} steps in a row without an update; {facts}. See the rewards in "
                "samples/; sampling.dynamic.by=reward keeps every group whose rewards differ",
                finding=None if metrics["reward/groups"] else "no-signal",
            )
