"""Callbacks: objects that receive the events of an evaluation."""

import logging
from collections.abc import Mapping

from rlobj.evaluation.result import EvaluationResult

logger = logging.getLogger(__name__)


class EvaluationCallback:
    """Receives the events of an evaluation. Override the methods you need."""

    def started(self, name: str) -> None:
        """Problems and settings are read, and the model with this name is loaded next."""

    def ready(self, facts: Mapping[str, str]) -> None:
        """Sampling or grading begins. `facts` are short texts by name: policy, device, folder."""

    def noted(self, text: str) -> None:
        """Something that the user should know. It is logged if the method is not overridden."""
        logger.info("%s", text)

    def sampled(self, benchmark: str, responses: int) -> None:
        """More responses were sampled and stored; they are graded later."""

    def graded(self, benchmark: str, done: int, total: int, accuracy: float) -> None:
        """`done` of `total` responses are graded.

        `accuracy` is the share of right ones; nan before the first verdict, and where nothing says
        which responses are right.
        """

    def finished(self, result: EvaluationResult) -> None:
        """The result is known, and its files, if any, are written."""
