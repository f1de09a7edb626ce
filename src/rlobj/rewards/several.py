"""Several rewards of one response.

rewards:
  - {name: correct, kind: exact}
  - {name: format, kind: custom, target: "my_rewards.py:tidy", weight: 0.2}
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from rlobj.base.errors import RunError
from rlobj.base.validation import InvalidFields
from rlobj.data import Problem
from rlobj.rewards.custom import function_grader
from rlobj.rewards.functions import ColumnValue
from rlobj.rewards.kinds import Graded, Grader, Reward, RewardConfig

OVERLONG = "overlong"
"""The name of the length penalty among several rewards."""


class Several(Reward):
    """Σ of several rewards with weights; `rewards: [...]` is short for it.

    A response is undecided if any of its rewards is. The first reward that says what is right
    decides that. The length penalty is one more reward, with
    the name `overlong` and weight 1.
    """

    of: tuple[RewardConfig, ...]
    """a list of {name, weight, kind, ...}"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = [] if self.of else [("of", "expected at least one reward")]
        for i, reward in enumerate(self.of):
            if reward.name in (None, OVERLONG, *self.names[:i]):
                text = f"{reward.name} is taken" if reward.name else "is required"
                problems.append((f"of.{i}.name", f"{text}; each reward needs a name of its own"))
            if reward.overlong:
                text = "belongs beside the list: {kind: several, of: [...], overlong: ...}"
                problems.append((f"of.{i}.overlong", text))
        if problems:
            raise InvalidFields(problems)
        return self

    @property
    def parts(self) -> Sequence[Reward]:
        return self.of

    @property
    def names(self) -> tuple[str, ...]:
        return (*(reward.name or "" for reward in self.of), *([OVERLONG] if self.overlong else []))

    @property
    def weights(self) -> tuple[float, ...]:
        return (*(reward.weight for reward in self.of), *([1.0] if self.overlong else []))

    def seen_from(self, home: Path) -> Self:
        return self.model_copy(update={"of": tuple(reward.seen_from(home) for reward in self.of)})

    def open(self, functions: Mapping[str, Callable[..., Any]] | None = None) -> Grader:
        """Return a grader with all rewards.

        Args:
            functions: Python functions in place of what the configuration names, by reward.
        """
        functions = functions or {}
        graders = [
            function_grader(functions[name], name, reward) if name in functions else reward.open()
            for name, reward in zip(self.names, self.of, strict=False)
        ]
        return _SeveralGrader(self, graders)


class _SeveralGrader(Grader):
    def __init__(self, settings: Several, graders: Sequence[Grader]) -> None:
        self._of, self._graders = settings.of, graders
        self.batched = any(grader.batched for grader in graders)

    def __enter__(self) -> Self:
        for grader in self._graders:
            grader.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:  # ends all of them, also if one raises
            for grader in self._graders:
                stack.push(grader)

    def check(self, problems: Sequence[Problem]) -> None:
        for grader in self._graders:
            grader.check(problems)

    @property
    def says_right(self) -> bool:
        return any(grader.says_right for grader in self._graders)

    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        """Grade each response by all rewards."""
        columns = [grader.score(responses, problems) for grader in self._graders]
        return [self._joined(parts) for parts in zip(*columns, strict=True)]

    def _joined(self, parts: Sequence[Graded]) -> Graded:
        rewards = tuple(part.reward for part in parts)
        total = sum(of.weight * reward for of, reward in zip(self._of, rewards, strict=True))
        place = next((i for i, grader in enumerate(self._graders) if grader.says_right), None)
        columns = dict[str, ColumnValue]()
        for of, part in zip(self._of, parts, strict=True):
            if taken := sorted(columns.keys() & part.columns.keys()):
                raise RunError(f"Reward {of.name}: one before it returns '{taken[0]}' as well")
            columns |= part.columns
        feedback = "\n".join(part.feedback for part in parts if part.feedback)
        one = parts[place or 0]
        correct, reason = (None if place is None else one.correct), one.reason
        for of, part in zip(self._of, parts, strict=True):
            if part.undecided:
                correct, reason = None, f"{of.name}: {part.reason}"
        return Graded(total, correct, reason, one.answer, rewards, one.verifier, columns, feedback)
