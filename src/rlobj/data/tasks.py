"""Built-in synthetic tasks: arithmetic for a tiny policy on one CPU thread.

`scratchpad` is a sum whose steps are written out: a response may have useless tokens, and a judge
finds them. `calculator` is a conversation with the environment `calculator`.

Every task is a finite list of problems with a fixed split into train and test. A problem and its
reorderings (3+4+8=, 8+3+4=) form a family and are in the same split, so that a test problem cannot
be answered from a reordered training problem.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rlobj.data.problems import Problem, digest
from rlobj.data.scratchpad import MARK, judge

CALL = re.compile(r"\?(\d{1,9})([+*-])(\d{1,9});")
"""A call of the calculator: the policy writes `?37*46;`, and reads `1702;`."""
HELD_OUT = 0.2
"""Smallest share of the problems in the test split."""


@dataclass(frozen=True)
class Task:
    """A task with problems over small numbers: `3+4+8=` -> `15`.

    Attributes:
        name: its name in `data.source`.
        description: one line for users.
        operands: how many numbers a problem has; every combination of numbers is a problem.
        separator: the character between them.
        solve: numbers -> answer, a non-negative number.
        numbers: those that a problem may have: digits by default.
        answer_after: only the text after the last occurrence of this is graded; None = all of it.
        environment: answers the calls of the policy; None = the response is one turn.
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
    separator: str
    solve: Callable[[tuple[int, ...]], int]
    numbers: Sequence[int] = range(10)
    answer_after: str | None = None
    environment: str | None = None
    judge: Callable[[str, Sequence[str]], list[bool]] | None = None

    def problems(self, split: str) -> list[Problem]:
        """Return the problems of train in counting order, or of test in a fixed shuffled order."""
        test = self._test_families()
        problems = [
            self._problem(numbers)
            for numbers in self._all()
            if (tuple(sorted(numbers)) in test) == (split == "test")
        ]
        return problems if split == "train" else sorted(problems, key=lambda item: digest(item.id))

    def _all(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(self.numbers, repeat=self.operands)

    def _problem(self, numbers: tuple[int, ...]) -> Problem:
        question, answer = self.separator.join(map(str, numbers)), str(self.solve(numbers))
        return Problem(id=f"{self.name}/{question}", prompt=f"{question}=", answer=answer)

    def _test_families(self) -> set[tuple[int, ...]]:
        """Families in the order of a hash, until they have the share `HELD_OUT` of the problems."""
        sizes = Counter(tuple(sorted(numbers)) for numbers in self._all())
        chosen: set[tuple[int, ...]] = set()
        missing = HELD_OUT * len(self.numbers) ** self.operands
        for family in sorted(sizes, key=lambda family: digest(f"{self.name}/{family}")):
            if missing <= 0:
                break
            chosen.add(family)
            missing -= sizes[family]
        return chosen


TASKS = {
    task.name: task
    for task in (
        Task(
            "scratchpad",
            "3+4+8+5= -> 3+4=7;7+8=15;15+5=20#20, graded by the text after #",
            4,
            "+",
            sum,
            answer_after=MARK,
            judge=judge,
        ),
        Task("addition", "the sum of three digits: 3+4+8= -> 15", 3, "+", sum),
        Task("max-digits", "the larger of two digits: 3,7= -> 7", 2, ",", max),
        Task(
            "calculator",
            "a product: 37*46= -> ?37*46; is answered with 1702; and then #1702",
            2,
            "*",
            math.prod,
            numbers=range(10, 100),
            answer_after=MARK,
            environment="calculator",
        ),
    )
}
"""Name -> task."""
