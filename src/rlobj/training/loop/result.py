"""What a training run returns."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rlobj.base.errors import RunError
from rlobj.runs.checkpoints import best_checkpoint, newest_checkpoint
from rlobj.runs.configuration import read_run_config


@dataclass(frozen=True)
class TrainingResult:
    """A run that ended.

    Attributes:
        path: the run directory.
        steps: steps done in all; fewer than `training.steps` if the run was interrupted.
        seconds: wall time of this session.
        history: the lines of metrics.jsonl, one dict a step. Step 0 is the evaluation before the
            first update.
        passed: the model and the tokenizer that Python code passed to the run, or None.
    """

    path: Path
    steps: int
    seconds: float
    history: list[dict[str, Any]] = field(repr=False)
    passed: tuple[Any, Any] | None = field(default=None, repr=False)

    @cached_property
    def model(self) -> Any:
        """The trained policy: a transformers model in evaluation mode.

        A model object that was passed to `train` is trained in place and returned here. Otherwise
        the model is loaded from the newest checkpoint, onto the CPU, when it is first asked for.

        Raises:
            RunError: the run has no checkpoint, because it made no step.
        """
        from rlobj.models.loading import load_model  # which imports transformers

        return self.passed[0].eval() if self.passed else self._loaded(load_model).eval()

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of `model`."""
        from rlobj.models.loading import load_tokenizer

        return self.passed[1] if self.passed else self._loaded(load_tokenizer)

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint with the highest held-out accuracy, or reward where nothing says what is
        right; the earliest of equals, None if none of the run's checkpoints was evaluated."""
        return best_checkpoint(self.path)

    def _loaded(self, load: Callable[..., Any]) -> Any:
        newest = newest_checkpoint(self.path)
        if newest is None:
            raise RunError(f"{self.path} has no checkpoint yet, so there is no trained model")
        return load(read_run_config(self.path).model, str(newest / "model"))
