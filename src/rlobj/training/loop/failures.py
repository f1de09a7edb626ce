"""What goes wrong in a step: said with its context, counted, and kept for a second look."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

import torch

from rlobj.base.errors import RlobjError, RunError
from rlobj.objectives.statistics import Comm
from rlobj.objectives.tokens import TokenBatch
from rlobj.training.parallel.agreement import together
from rlobj.training.storage.run_directory import RunDirectory, step_name

__all__ = ["Failures", "explained"]

logger = logging.getLogger(__name__)


class Failures:
    """Counts updates that were not finite and steps without an update, and stops at too many.

    Args:
        run: where batches that were not finite are kept, in nonfinite/.
        comm: the process group.
        limit: in a row, at which the run stops.
    """

    def __init__(self, run: RunDirectory, comm: Comm, limit: int) -> None:
        self._run = run
        self._comm = comm
        self._limit = limit
        self.nonfinite = 0
        self.idle = 0

    def state(self) -> dict[str, int]:
        """For a checkpoint."""
        return {"nonfinite": self.nonfinite, "idle": self.idle}

    def restore(self, state: Mapping[str, int]) -> None:
        """What `state` gave."""
        self.nonfinite, self.idle = state["nonfinite"], state["idle"]

    def updated(self) -> None:
        """An update was finite."""
        self.nonfinite = 0

    def skipped(
        self,
        step: int,
        update: int,
        table: TokenBatch,
        sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
    ) -> None:
        """An update was not finite: keep its batch; this rank's part, in a file of its own.

        Args:
            step: from 0.
            update: of the step, from 0.
            table: the batch.
            sequences: its token ids.

        Raises:
            RunError: too many in a row.
        """
        self.nonfinite += 1
        place = f"{step_name(step + 1)}-update-{update + 1}-rank-{self._comm.rank}"
        name = f"nonfinite/{place}.pt"
        columns = {field.name: getattr(table, field.name) for field in fields(table)}
        kept = {
            key: value.detach().cpu() if isinstance(value, torch.Tensor) else value
            for key, value in columns.items()
        }
        with together(self._comm, "keeping a batch that was not finite"):
            (self._run.path / "nonfinite").mkdir(exist_ok=True)
            ids = [(list(prompt), list(response)) for prompt, response in sequences]
            with self._run.atomic(name) as place:
                torch.save({"columns": kept, "sequences": ids}, place)
        logger.warning("step %d: an update was not finite and was skipped; see %s", step + 1, name)
        if self.nonfinite >= self._limit:
            raise RunError(
                f"log-probs, loss or gradient were not finite in {self.nonfinite} updates in a "
                f"row. Lower training.learning_rate. The last batch is in {self._run.path / name}"
            )

    def idled(self, facts: str) -> None:
        """A step made no update.

        Raises:
            RunError: too many in a row.
        """
        self.idle += 1
        logger.warning(facts)
        if self.idle >= self._limit:
            raise RunError(
                f"{self.idle} steps in a row without an update; {facts}. Look at the rewards "
                f"in {self._run.path / 'samples'}; sampling.dynamic.by=reward keeps every group "
                "whose rewards differ."
            )

    def worked(self) -> None:
        """A step made an update."""
        self.idle = 0


@contextlib.contextmanager
def explained(step: int) -> Iterator[None]:
    """Once steps are being made, the input was right: whatever stops them is a RunError."""
    try:
        yield
    except RunError:
        raise
    except RlobjError as error:
        raise RunError(f"step {step + 1} failed: {error}") from error
    except OSError as error:
        raise RunError(f"step {step + 1} could not be written: {error}") from error
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"step {step + 1} ran out of GPU memory: {error}\nLower training.micro_batch_tokens or "
            "sampling.batch_tokens, or set training.gradient_checkpointing=true; none of them "
            "changes results."
        ) from error
