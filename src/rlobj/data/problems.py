"""Problems, and the shuffled endless stream from which training draws them."""

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
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
    source: str = ""
    """The label of its source, if there are several."""
    template: str | None = None
    """The text around it, in place of the data set's."""

    @property
    def golds(self) -> Sequence[str]:
        """The gold answers of which any is right: `extra["alternatives"]`, else the answer."""
        return self.extra.get("alternatives") or (self.answer,)


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def fingerprint(problems: Iterable[Problem]) -> str:
    """Sixteen hexadecimal digits that change with any prompt, answer or column; "" for none."""
    hasher, empty = hashlib.sha256(), True
    for problem in problems:
        row = {**vars(problem), "extra": dict(problem.extra)}
        hasher.update(json.dumps(row, default=_written, skipkeys=True).encode())
        empty = False
    return "" if empty else hasher.hexdigest()[:16]


def _written(value: Any) -> Any:
    """A value that JSON does not have: a set, an array, or an object without its address."""
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


class UniqueProblems:
    """Problems with unique questions and ids; of equal questions, the first is kept.

    Attributes:
        problems: the unique problems, in order.
        repeated: number of problems with the question of an earlier one.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.repeated = 0
        self._questions: set[str] = set()
        self._ids: set[str] = set()

    def add(self, problem: Problem) -> Problem | None:
        """Append and return a problem if its question is new; change its id if that is in use."""
        if problem.prompt in self._questions:
            self.repeated += 1
            return None
        self._questions.add(problem.prompt)
        if problem.id in self._ids:
            problem = replace(problem, id=f"{problem.id}-{digest(problem.prompt)[:16]}")
        self._ids.add(problem.id)
        self.problems.append(problem)
        return problem


def known_problems(train: Sequence[Problem], test: Sequence[Problem]) -> str | None:
    """Say how many held-out problems are training problems, up to blanks; None = no problem is."""
    questions = {" ".join(problem.prompt.split()) for problem in train}
    repeated = [problem.prompt for problem in test if " ".join(problem.prompt.split()) in questions]
    if not repeated:
        return None
    what = f"{len(repeated)} of {len(test)} held-out problems are also training problems"
    return f"{what}, such as {repeated[0][:60]!r}"


class _Order:
    """Draws the problems of one source forever: each epoch has each once, shuffled by its seed."""

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        self.problems, self._seed = problems, seed
        self._fingerprint = digest("\n".join(problem.id for problem in problems))[:16]
        self._start(epoch=0)

    def _start(self, epoch: int) -> None:
        self._epoch, self._position = epoch, 0
        self._order = list(range(len(self.problems)))
        random.Random(f"{self._seed}/{epoch}").shuffle(self._order)

    @property
    def drawn(self) -> int:
        """Number of problems drawn so far."""
        return self._epoch * len(self.problems) + self._position

    def draw(self) -> Problem:
        """Return the next problem."""
        if self._position == len(self._order):
            self._start(self._epoch + 1)
        self._position += 1
        return self.problems[self._order[self._position - 1]]

    def state(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "problems": self._fingerprint,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["problems"] != self._fingerprint or not state["position"] <= len(self.problems):
            raise DataError("the saved position is of another data set than the run started with")
        self._seed = state["seed"]
        self._start(state["epoch"])
        self._position = state["position"]


class ProblemStream:
    """Draws problems forever, of several sources by weight; each source has epochs of its own.

    An epoch has every problem of its source once, shuffled by (seed, epoch). A draw can cross the
    end of an epoch, so that it may contain a problem twice.

    With weights w_i, W = Σ w_i, and n_i of the N problems drawn so far from source i, the next one
    is of the source with the smallest (n_i + 1)/w_i among those with n_i < (N + 1)·w_i/W. Then
    |n_i - N·w_i/W| < 1 for all N.

    Args:
        problems: at least one of each source.
        weights: of several sources, by label; none = all problems are of one source.
        seed: seed of the order in each source.

    Raises:
        DataError: a source has no problem.

    Source:
        The quota method of Balinski and Young, American Mathematical Monthly 82, 1975.

    Example:
        >>> problems = [Problem(id, "?", "1", source=id[0]) for id in ("a1", "b1", "b2")]
        >>> stream = ProblemStream(problems, {"a": 2, "b": 1})
        >>> "".join(problem.source for problem in stream.next(6))
        'aabaab'
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        weights: Mapping[str, float] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self._several, self._weights = bool(weights), dict(weights or {"": 1.0})
        self._sources: dict[str, _Order] = {}
        for name in self._weights:
            part = [item for item in problems if not self._several or item.source == name]
            if not part:
                raise DataError(f"data.source: no problem of {name} is left to train on")
            self._sources[name] = _Order(part, seed)

    def __len__(self) -> int:
        """Number of problems."""
        return sum(len(source.problems) for source in self._sources.values())

    def first(self, count: int) -> list[Problem]:
        """Return the first problems of each source in turn, `count` together, without drawing."""
        turns = itertools.zip_longest(*(each.problems[:count] for each in self._sources.values()))
        return [problem for turn in turns for problem in turn if problem is not None][:count]

    def next(self, count: int) -> list[Problem]:
        """Return the next `count` problems."""
        weights, whole = self._weights, sum(self._weights.values())
        drawn: list[Problem] = []
        for _ in range(count):
            counts = {name: source.drawn for name, source in self._sources.items()}
            after = sum(counts.values()) + 1
            behind = [name for name, n in counts.items() if n * whole < after * weights[name]]
            chosen = min(behind, key=lambda name: (counts[name] + 1) / weights[name])
            drawn.append(self._sources[chosen].draw())
        return drawn

    def epochs(self, state: Mapping[str, Any]) -> dict[str, float]:
        """The epochs of each of several sources at the position that `state()` returned."""
        return {
            name: place["epoch"] + place["position"] / len(self._sources[name].problems)
            for name, place in state.get("sources", {}).items()
        }

    def state(self) -> dict[str, Any]:
        """Return the position of the stream, as JSON values."""
        places = {name: source.state() for name, source in self._sources.items()}
        return {"sources": places} if self._several else places[""]

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the position that `state()` returned.

        Raises:
            DataError: the state belongs to other problems, or to another order of them.
        """
        for name, place in state["sources"].items() if self._several else [("", state)]:
            self._sources[name].restore(place)
