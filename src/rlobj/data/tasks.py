"""Built-in synthetic tasks: arithmetic for a tiny policy on one CPU thread.

`scratchpad` is a sum whose steps are written out. `scratchpad-3` and `scratchpad-5` have other
numbers of digits. In these, the response may have useless tokens, and a judge finds them.

`calculator` and `calculator-sum` are conversations with the environment `calculator`.

Every task is a finite list of problems with a fixed split into train and test. A problem and its
reorderings (3+4+8=, 8+3+4=) form a family and are in the same split, so that a test problem cannot
be answered from a reordered training problem.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rlobj.data.problems import Problem, digest
from rlobj.data.scratchpad import MARK, derivation, judge


@dataclass(frozen=True)
class Task:
    """A task with problems over small numbers: `3+4+8=` -> `15`.

    Attributes:
        name: its name in `data.source`.
        description: one line for users.
        operands: how many numbers a problem has; every combination of numbers is a problem.
        separators: what stands between them, one character after each number but the last.
        solve: numbers -> answer, a non-negative number.
        numbers: those that a problem may have: digits by default.
        held_out: smallest share of the problems in the test split.
        work: numbers -> a whole right response; None = the answer alone.
        answer_after: only the text after the last occurrence of this is graded; None = all of it.
        environment: answers the calls in `work`, which then has its answers as well; None = the
            response is one turn.
        judge: (prompt, text of each token of a right response) -> whether each token is spurious;
            special tokens have empty texts. None = the task cannot say.

    Example:
        >>> task = TASKS["addition"]
        >>> problem = task.problems("train")[0]
        >>> problem.prompt, problem.answer
        ('0+0+0=', '0')
        >>> len(task.problems("train")), len(task.problems("test"))
        (798, 202)
    """

    name: str
    description: str
    operands: int
    separators: str
    solve: Callable[[tuple[int, ...]], int]
    numbers: Sequence[int] = range(10)
    held_out: float = 0.2
    work: Callable[[tuple[int, ...]], str] | None = None
    answer_after: str | None = None
    environment: str | None = None
    judge: Callable[[str, Sequence[str]], list[bool]] | None = None

    def problems(self, split: str) -> list[Problem]:
        """Return the problems of train in counting order, or of test in a fixed shuffled order."""
        problems = [self._problem(numbers) for numbers in self._of(split)]
        return problems if split == "train" else sorted(problems, key=lambda item: digest(item.id))

    def demonstrations(self) -> list[tuple[str, str]]:
        """Return (prompt, right response) for each training problem, for supervised training.

        In a conversation, the response has the calls and what the environment answers:
        `?37*46;1702;#1702`.
        """
        problems = self.problems("train")
        if self.work is None:
            return [(problem.prompt, problem.answer) for problem in problems]
        works = map(self.work, self._of("train"))
        return [(problem.prompt, work) for problem, work in zip(problems, works, strict=True)]

    def _of(self, split: str) -> list[tuple[int, ...]]:
        """The numbers of each problem of a split, in counting order."""
        test = self._test_families()
        return [
            numbers for numbers in self._all() if (_family(numbers) in test) == (split == "test")
        ]

    def _all(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(self.numbers, repeat=self.operands)

    def _problem(self, numbers: tuple[int, ...]) -> Problem:
        pairs = zip(numbers, f"{self.separators}=", strict=True)
        prompt = "".join(f"{number}{mark}" for number, mark in pairs)
        answer = str(self.solve(numbers))
        return Problem(id=f"{self.name}/{prompt[:-1]}", prompt=prompt, answer=answer)

    def _test_families(self) -> set[tuple[int, ...]]:
        """Families in the order of a hash, until they have the share `held_out` of the problems."""
        sizes = Counter(map(_family, self._all()))
        chosen: set[tuple[int, ...]] = set()
        missing = self.held_out * len(self.numbers) ** self.operands
        for family in sorted(sizes, key=lambda family: digest(f"{self.name}/{family}")):
            if missing <= 0:
                break
            chosen.add(family)
            missing -= sizes[family]
        return chosen


def _family(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(numbers))


def _scratchpad(name: str, operands: int) -> Task:
    example = [3, 4, 8, 5, 2][:operands]
    prompt = "+".join(map(str, example))
    about = f"{prompt}= -> {derivation(example)}, graded by the text after #"
    separators = "+" * (operands - 1)
    return Task(
        name, about, operands, separators, sum, work=derivation, answer_after=MARK, judge=judge
    )


def _call(a: int, operator: str, b: int) -> str:
    """A call of the calculator, and what it answers."""
    return f"?{a}{operator}{b};{a + b if operator == '+' else a * b};"


def _sum_of_products(numbers: tuple[int, ...]) -> int:
    a, b, c, d = numbers
    return a * b + c * d


def _product_with_calls(numbers: tuple[int, ...]) -> str:
    a, b = numbers
    return f"{_call(a, '*', b)}{MARK}{a * b}"


def _sum_with_calls(numbers: tuple[int, ...]) -> str:
    a, b, c, d = numbers
    calls = _call(a, "*", b), _call(c, "*", d), _call(a * b, "+", c * d)
    return f"{''.join(calls)}{MARK}{_sum_of_products(numbers)}"


TASKS = {
    task.name: task
    for task in (
        _scratchpad("scratchpad", 4),
        _scratchpad("scratchpad-3", 3),
        _scratchpad("scratchpad-5", 5),
        Task("addition", "the sum of three digits: 3+4+8= -> 15", 3, "++", sum),
        Task("max-digits", "the larger of two digits: 3,7= -> 7", 2, ",", max),
        Task(
            "calculator",
            "a product: 37*46= -> ?37*46; is answered with 1702; and then #1702",
            2,
            "*",
            math.prod,
            numbers=range(10, 100),
            work=_product_with_calls,
            answer_after=MARK,
            environment="calculator",
        ),
        Task(
            "calculator-sum",
            "a sum of two products: 12*15+18*11= -> three calls of the calculator, then #378",
            4,
            "*+*",
            _sum_of_products,
            numbers=range(11, 20),
            work=_sum_with_calls,
            answer_after=MARK,
            environment="calculator",
        ),
    )
}
"""Name -> task."""
