"""The reward of a run: grades responses with the answers of their problems.

rewards: math                                            # a kind with default settings
rewards: {kind: math, deadline: 5, overlong: {cache: 0.2}}
rewards: {kind: custom, target: "my_rewards.py:score"}
rewards: [{name: correct, kind: math}, {name: format, kind: custom, target: "mine.py:tidy"}]
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import BeforeValidator, Field, SerializeAsAny

from rlobj.answers import MathVerifier, Verdict
from rlobj.answers.version import DEADLINE
from rlobj.base.paths import located_target
from rlobj.base.primitives import Primitive
from rlobj.base.validation import InvalidFields, Model
from rlobj.rewards.functions import TURNS, ColumnValue

if TYPE_CHECKING:
    from torch import Tensor

    from rlobj.data import Problem


WORDS = {True: "right", False: "wrong", None: "undecided"}
Decided = TypeVar("Decided", bound="Graded | Verdict")


def best(verdicts: Iterable[Decided]) -> Decided:
    """The verdict that counts: a right one, else an undecided one, else a wrong one.

    Args:
        verdicts: at least one, each with `correct`.
    """
    return min(verdicts, key=lambda verdict: (True, None, False).index(verdict.correct))


def best_of_golds(
    verify_many: Callable[[list[tuple[Any, Any]]], list[Decided]],
    questions: Sequence[tuple[Any, Sequence[Any]]],
) -> list[Decided]:
    """The verdict on each (response, gold answers) by the gold answer that is best for it."""
    pairs = [(response, gold) for response, golds in questions for gold in golds]
    verdicts = iter(verify_many(pairs))
    return [best(next(verdicts) for _ in golds) for _, golds in questions]


def overlong_penalty(lengths: Tensor, max_tokens: float, cache: float) -> Tensor:
    r"""Return the length penalty of each response.

    L is the length, L_max the limit and L_c the cache, all in tokens:

                0                        L <= L_max - L_c
        P(L) =  (L_max - L_c - L) / L_c  L_max - L_c < L <= L_max
                -1                       L_max < L

    Args:
        lengths: [B], in tokens.
        max_tokens: L_max, in tokens.
        cache: L_c > 0, in tokens; the penalty grows over the last L_c tokens before the limit.

    Returns:
        [B] float64, between -1 and 0.

    Source:
        DAPO, arXiv:2503.14476, equation 13.

    Example:
        >>> import torch
        >>> overlong_penalty(torch.tensor([80, 90, 100, 120]), max_tokens=100, cache=20).tolist()
        [0.0, -0.5, -1.0, -1.0]
    """
    return ((max_tokens - cache - lengths.double()) / cache).clamp(-1.0, 0.0)


CAUSES: dict[str, tuple[str, ...]] = {
    "no_answer": ("no ",),
    "unreadable": ("not readable", "not an answer"),
    "too_large": ("too large",),
    "not_settled": ("not settled",),
    "timeout": ("timeout",),
    "crash": ("crash", "memory", "error"),
}
"""Why a response is wrong although nothing was compared -> the beginnings of its reasons."""
NOT_COMPARED = tuple(name for name in CAUSES if name != "no_answer")
"""The causes that lie in an answer."""
NO_ANSWER = ("no_answer", "unreadable")
"""The causes of a response without an answer that can be read."""


class Overlong(Model):
    """Soft overlong punishment, added to the reward; accuracy does not include it.

    The paper's limit of 20480 tokens with a cache of 4096 is `cache: 0.2`.
    """

    cache: float = Field(gt=0, lt=1)
    """L_c as a share of sampling.max_tokens"""
    penalty: float = Field(default=1.0, ge=0)
    """penalty of a response at the limit, in units of the reward"""

    def shape(self, rewards: Tensor, lengths: Tensor, max_tokens: int) -> Tensor:
        """Add the penalty to rewards [B]; an undecided reward (NaN) stays undecided.

        Args:
            rewards: [B].
            lengths: [B], in tokens.
            max_tokens: length limit, in tokens.
        """
        shaped = overlong_penalty(lengths, max_tokens, self.cache * max_tokens)
        return rewards + (self.penalty * shaped).to(rewards.dtype)


@dataclass(frozen=True)
class Graded:
    """The grade of one response, before any shaping."""

    reward: float
    """NaN = undecided."""
    correct: bool | None
    """None = undecided, or nothing says whether the response is right: accuracy ignores it."""
    reason: str
    """What decided, or why nothing was compared."""
    answer: str | None
    """The final answer found in the response, or None."""
    rewards: tuple[float, ...] = ()
    """Each of several rewards; `reward` is their weighted sum."""
    verifier: str | None = None
    """`MathVerifier.version`, if the verifier graded it."""
    columns: Mapping[str, ColumnValue] = field(default_factory=dict)
    """The columns that the function of a reward returned."""
    feedback: str = ""
    """What the function says about the response, for the prompts of scores."""

    @property
    def undecided(self) -> bool:
        """Whether the response has no reward; then nothing says whether it is right either."""
        return math.isnan(self.reward)

    @property
    def verdict(self) -> str:
        """The verdict as a word; the reward where nothing says whether the response is right."""
        says = self.undecided or self.correct is not None
        return WORDS[self.correct] if says else f"reward {self.reward:.3g}"

    @property
    def cause(self) -> str | None:
        """The name in `CAUSES` of why the response is wrong although nothing was compared."""
        if self.correct is not False:
            return None
        return next((name for name, says in CAUSES.items() if self.reason.startswith(says)), None)

    @property
    def no_answer(self) -> bool:
        """Whether the response is wrong because it has no answer, or one that cannot be read."""
        return self.cause in NO_ANSWER


class Grader:
    """An open reward: a context manager that grades batches of responses.

    Attributes:
        batched: all responses should be graded in one call of `score`.
    """

    batched = False

    @property
    def says_right(self) -> bool:
        """Whether grades say which responses are right; a function shows it in its first call."""
        return True

    def check(self, problems: Sequence[Problem]) -> None:
        """Find what is wrong with a function of the user before it is needed.

        Args:
            problems: those to be graded.

        Raises:
            ConfigError: the function does not take their columns, or cannot grade the answer of the
                first one.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End what was started, also by `check` and without `__enter__`."""

    def close(self) -> None:
        """End what was started."""
        self.__exit__(None, None, None)

    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        """Grade each response; `responses[i]` is an answer to `problems[i]`."""
        raise NotImplementedError


NO_REWARD = "the reward returned None or NaN"
"""The reason of a grade by a function that left the response undecided."""


class Ungraded(Grader):
    """Leaves all responses undecided: their problems have no answers."""

    @property
    def says_right(self) -> bool:
        return False

    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        """Leave each response undecided."""
        return [Graded(math.nan, None, "the problem has no answer", None) for _ in responses]


class Reward(Primitive):
    """Base class of rewards."""

    custom = "function"

    overlong: Overlong | None = None
    """soft overlong punishment (DAPO) added to the reward"""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w-]*$")
    """name of one of several rewards"""
    weight: float = 1.0
    """weight of one of several rewards"""

    @classmethod
    def build(cls, value: Any) -> Reward:
        """Return a reward from an instance, a kind, a mapping, or a list of mappings (`Several`).

        The default kind is `math`.

        Raises:
            ConfigError: unknown kind or wrong settings; it lists all of them.
        """
        if value == "custom":
            value = {"kind": value}
        if isinstance(value, Mapping):
            value = {"kind": "math", **value}
            if value["kind"] == "custom":  # `target` is a function here, not a reward class
                del value["kind"]
                return cls.registry["custom"](**value)  # type: ignore[return-value]
        if not isinstance(value, list | tuple):
            return super().build(value)
        try:
            return super().build({"kind": "several", "of": value})
        except InvalidFields as error:  # in the words of a list
            problems = [(path.removeprefix("of."), text) for path, text in error.problems]
            raise InvalidFields(problems) from None

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of several rewards; None for one reward."""
        return None

    @property
    def weights(self) -> tuple[float, ...] | None:
        """The weights of several rewards in their sum."""
        return None

    @property
    def parts(self) -> Sequence[Any]:
        """Several rewards; one reward is its only part."""
        return [self]

    @property
    def targets(self) -> list[str]:
        """The functions that it names."""
        return [part.target for part in self.parts if hasattr(part, "target")]

    @property
    def models(self) -> list[str]:
        """The reward models that it names."""
        return [part.model for part in self.parts if hasattr(part, "model")]

    @property
    def needs_answers(self) -> bool:
        """Whether problems without an answer cannot be graded."""
        return len(self.models) < len(self.parts)

    def seen_from(self, home: Path) -> Self:
        """A copy with the absolute paths of files with functions, which are seen from `home`."""
        target = getattr(self, "target", None)
        update = {} if target is None else {"target": located_target(target, home)}
        return self.model_copy(update=update)

    def recorded(self) -> dict[str, Any]:
        """The settings that can change a grade."""
        hidden: dict[str, Any] = dict.fromkeys(
            ("workers", "concurrency", "max_failures", "device", "batch_tokens"), True
        )
        several = {"name": True, "weight": True, "of": {"__all__": hidden}}
        return self.model_dump(mode="json", exclude={**hidden, **several})

    def open(self) -> Grader:
        """Return a grader with these settings; use it as a context manager."""
        raise NotImplementedError


RewardConfig = Annotated[SerializeAsAny[Reward], BeforeValidator(Reward.build)]


class Math(Reward):
    """1 if the final answer is mathematically equal to the gold answer, else 0.

    See `MathVerifier`.
    """

    deadline: float = Field(default=DEADLINE, gt=0)
    """time limit for one answer, in seconds of processor time; then it is wrong"""
    workers: int = Field(default_factory=lambda: min(8, os.cpu_count() or 1), ge=1)
    """processes that check answers; default: one per core, at most 8"""

    def open(self) -> _MathGrader:
        """Return a grader with `workers` processes, which start when it is entered."""
        return _MathGrader(self.deadline, self.workers)


class Exact(Reward):
    """1 if the response equals the answer, or any of several, up to blanks around it, else 0."""

    after: str | None = Field(default=None, min_length=1)
    """compare only the text after the last occurrence of this, such as ####; without it the
    response is wrong"""

    def open(self) -> FunctionGrader:
        """Return a grader that compares text."""
        return FunctionGrader(lambda response, problem: _exact(self.after, response, problem))


class _MathGrader(MathVerifier, Grader):
    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        """Grade each response; if a problem has alternatives, any of them is right."""
        golds = [problem.golds for problem in problems]
        questions = list(zip(responses, golds, strict=True))
        return list(map(self._graded, best_of_golds(self.verify_many, questions)))

    def _graded(self, verdict: Verdict) -> Graded:
        reward = math.nan if verdict.correct is None else float(verdict.correct)
        correct, version = verdict.correct, self.version
        return Graded(reward, correct, verdict.reason, verdict.answer, verifier=version)


class FunctionGrader(Grader):
    """A grader that calls a function for each response.

    Args:
        grade: (response, problem) -> grade.
    """

    def __init__(self, grade: Callable[[str, Problem], Graded]) -> None:
        self._grade = grade

    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        """Grade each response."""
        return [self._grade(*pair) for pair in zip(responses, problems, strict=True)]


def _exact(after: str | None, response: str, problem: Problem) -> Graded:
    _, marked, answer = response.rpartition(after) if after else ("", True, response)
    if not marked:
        return Graded(0.0, False, f"no {after}", None)
    answer = answer.strip()
    correct = answer in [gold.strip() for gold in problem.golds]
    return Graded(float(correct), correct, "same text" if correct else "other text", answer)


class Environment(Reward):
    """The sum of the rewards that the environment of a conversation gave for its turns.

    The response is right if the environment says so in its last turn. Where no turn of any
    conversation says it, there is no accuracy.
    """

    @property
    def needs_answers(self) -> bool:
        """Nothing needs them: the environment knows what is right."""
        return False

    def open(self) -> Grader:
        """Return a grader that reads the turns."""
        return FunctionGrader(_of_environment)


def _of_environment(response: str, problem: Problem) -> Graded:
    turns = problem.extra.get(TURNS) or ()
    reward = math.fsum(turn["reward"] for turn in turns)
    right = turns[-1]["correct"] if turns else None
    return Graded(reward, right, "environment", response)
