"""Problems, and the shuffled endless stream from which training draws them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlobj.base.errors import DataError

Row = tuple[str, dict[str, Any]]
"""The location of a row, for error messages, and its columns."""


@dataclass(frozen=True)
class Problem:
    """A question with a checkable answer.

    Example:
        >>> Problem(id="1", prompt="What is 2+2?", answer="4").answer
        '4'
    """

    id: str
    """Unique within the data set."""
    prompt: str
    """The question, without a template."""
    answer: str
    """The gold answer alone: no `\\boxed{}`, no worked solution."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The other columns of the row, by name."""

    @property
    def golds(self) -> Sequence[str]:
        """The gold answers of which any is right: `extra["alternatives"]`, else the answer."""
        return self.extra.get("alternatives") or (self.answer,)


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class UniqueProblems:
    """Problems with unique questions and ids; of equal questions, the first is kept.

    Attributes:
        problems: the unique problems, in order.
        repeated: number of problems with the question of an earlier one.
        disagreeing: number of these with another answer.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.repeated = self.disagreeing = 0
        self._answers: dict[str, str] = {}
        self._ids: set[str] = set()

    def add(self, problem: Problem) -> None:
        """Append a problem if its question is new; change its id if that is in use."""
        if problem.prompt in self._answers:
            self.repeated += 1
            self.disagreeing += self._answers[problem.prompt] != problem.answer
            return
        self._answers[problem.prompt] = problem.answer
        if problem.id in self._ids:
            problem = replace(problem, id=f"{problem.id}-{digest(problem.prompt)[:16]}")
        self._ids.add(problem.id)
        self.problems.append(problem)


class ProblemStream:
    """Draws problems forever: each epoch has every problem once, shuffled by (seed, epoch).

    A draw can cross the end of an epoch, so that it may contain a problem twice.

    Args:
        problems: at least one.
        seed: seed of the order.

    Example:
        >>> stream = ProblemStream([Problem("a", "1+1", "2"), Problem("b", "2+2", "4")], seed=0)
        >>> sorted(problem.id for problem in stream.next(2))
        ['a', 'b']
    """

    def __init__(self, problems: Sequence[Problem], *, seed: int = 0) -> None:
        self._problems = list(problems)
        self._seed = seed
        self._fingerprint = digest("\n".join(problem.id for problem in self._problems))[:16]
        self._start(epoch=0, position=0)

    def _start(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._order = list(range(len(self._problems)))
        random.Random(f"{self._seed}/{epoch}").shuffle(self._order)

    def __len__(self) -> int:
        """Number of problems in an epoch."""
        return len(self._problems)

    def first(self, count: int) -> list[Problem]:
        """Return the first `count` problems of the data set; the stream does not advance."""
        return self._problems[:count]

    def next(self, count: int) -> list[Problem]:
        """Return the next `count` problems."""
        drawn: list[Problem] = []
        while len(drawn) < count:
            if self._position == len(self._order):
                self._start(self._epoch + 1, position=0)
            taken = self._order[self._position : self._position + count - len(drawn)]
            self._position += len(taken)
            drawn.extend(self._problems[index] for index in taken)
        return drawn

    def state(self) -> dict[str, Any]:
        """Return the position of the stream, as JSON values."""
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "problems": self._fingerprint,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the position that `state()` returned.

        Raises:
            DataError: the state belongs to other problems, or to another order of them.
        """
        if state["problems"] != self._fingerprint or not state["position"] <= len(self):
            raise DataError(
                f"The saved position belongs to another data set: its problem ids have fingerprint "
                f"{state['problems']}, these {len(self._problems)} problems have "
                f"{self._fingerprint}. Resume with the data that the run started with."
            )
        if (state["seed"], state["epoch"]) != (self._seed, self._epoch):
            self._seed = state["seed"]
            self._start(state["epoch"], position=0)
        self._position = state["position"]
