"""One problem, and the shuffled endless order in which training draws problems."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlobj.base.errors import DataError

__all__ = ["Distinct", "Problem", "ProblemStream", "digest"]


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
    """The raw question, without a template."""
    answer: str
    """The gold answer alone: no `\\boxed{}`, no worked solution."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The other columns of the row, by name."""


def digest(text: str) -> str:
    """SHA-256 of a text in hexadecimal: the same on every machine and Python version."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Distinct:
    """Of problems with the same question the first, under an id of its own.

    Attributes:
        repeated: problems whose question came before.
        disagreeing: those of them with another answer.
    """

    def __init__(self) -> None:
        self.repeated = self.disagreeing = 0
        self._answers: dict[str, str] = {}
        self._ids: set[str] = set()

    def add(self, problem: Problem) -> Problem | None:
        """The problem, renamed if its id was taken; None for a question that came before."""
        if problem.prompt in self._answers:
            self.repeated += 1
            self.disagreeing += self._answers[problem.prompt] != problem.answer
            return None
        self._answers[problem.prompt] = problem.answer
        if problem.id in self._ids:
            problem = replace(problem, id=f"{problem.id}-{digest(problem.prompt)[:16]}")
        self._ids.add(problem.id)
        return problem


class ProblemStream:
    """Endless draws: each epoch visits every problem once, in an order set by (seed, epoch).

    A draw may reach over the end of an epoch, so a problem can occur twice in one draw there.

    Example:
        >>> stream = ProblemStream([Problem("a", "1+1", "2"), Problem("b", "2+2", "4")], seed=0)
        >>> sorted(problem.id for problem in stream.next(2))
        ['a', 'b']
    """

    def __init__(self, problems: Sequence[Problem], *, seed: int = 0) -> None:
        if not problems:
            raise DataError("a problem stream needs at least one problem, got none")
        self._problems = list(problems)
        self._seed = seed
        self._fingerprint = digest("\n".join(problem.id for problem in self._problems))[:16]
        self._start(epoch=0, position=0)

    def _start(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._order = list(range(len(self._problems)))
        random.Random(f"{self._seed}/{epoch}").shuffle(self._order)

    def __len__(self) -> int:
        """Problems per epoch."""
        return len(self._problems)

    def first(self, count: int) -> list[Problem]:
        """The first few problems, whatever was drawn."""
        return self._problems[:count]

    def next(self, count: int) -> list[Problem]:
        """The next `count` problems of the endless order."""
        drawn: list[Problem] = []
        while len(drawn) < count:
            if self._position == len(self._order):
                self._start(self._epoch + 1, position=0)
            taken = self._order[self._position : self._position + count - len(drawn)]
            self._position += len(taken)
            drawn.extend(self._problems[index] for index in taken)
        return drawn

    def state(self) -> dict[str, Any]:
        """Where the stream stands, ready for JSON."""
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "problems": self._fingerprint,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state()` was taken.

        Raises:
            DataError: the state belongs to other problems, or to the same in another file order.
        """
        if state["problems"] != self._fingerprint:
            raise DataError(
                f"The saved position belongs to another data set: its problem ids have fingerprint "
                f"{state['problems']}, these {len(self._problems)} problems have "
                f"{self._fingerprint}. Resume with the data the run was started with."
            )
        self._seed = state["seed"]
        self._start(state["epoch"], state["position"])
