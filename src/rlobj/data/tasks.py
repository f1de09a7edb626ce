"""Built-in synthetic tasks: arithmetic for a tiny policy on one CPU thread.

`scratchpad` is a sum whose steps are written out. `scratchpad-3` and `scratchpad-5` have other
numbers of digits. In these, the response may have useless tokens, and a judge finds them.

Every task is a finite list of problems with a fixed split into train and test. A problem and its
reorderings (3+4+8=, 8+3+4=) form a family and are in the same split, so that a test problem cannot
be answered from a reordered training problem.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlobj.data.problems import Problem, digest
from rlobj.data.scratchpad import MARK, derivation, judge


@dataclass(frozen=True)
class Task:
    """A task with problems over digits: `3+4+8=` -> `15`.

    Attributes:
        name: its name in `data.source`.
        description: one line for users.
        operands: number of digits in a problem; every combination of digits is a problem.
        separator: text between the digits.
        solve: digits -> answer, a non-negative number.
        held_out: smallest share of the problems in the test split.
        work: digits -> a whole right response; None = the answer alone.
        answer_after: only the text after the last occurrence of this is graded; None = all of it.
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
    held_out: float = 0.2
    work: Callable[[tuple[int, ...]], str] | None = None
    answer_after: str | None = None
    judge: Callable[[str, Sequence[str]], list[bool]] | None = None

    def problems(self, split: str) -> list[Problem]:
        """Return the problems of train in counting order, or of test in a fixed shuffled order."""
        test = self._test_families()
        numbers = itertools.product(range(10), repeat=self.operands)
        chosen = [digits for digits in numbers if (_family(digits) in test) == (split == "test")]
        problems = [self._problem(digits) for digits in chosen]
        return problems if split == "train" else sorted(problems, key=lambda item: digest(item.id))

    def demonstrations(self) -> list[tuple[str, str]]:
        """Return (prompt, right response) for each training problem, for supervised training."""
        problems = self.problems("train")
        if self.work is None:
            return [(problem.prompt, problem.answer) for problem in problems]
        digits = (map(int, problem.prompt[:-1].split(self.separator)) for problem in problems)
        works = (self.work(tuple(each)) for each in digits)
        return [(problem.prompt, work) for problem, work in zip(problems, works, strict=True)]

    def _problem(self, digits: tuple[int, ...]) -> Problem:
        question = self.separator.join(map(str, digits))
        return Problem(
            id=f"{self.name}/{question}", prompt=f"{question}=", answer=str(self.solve(digits))
        )

    def _test_families(self) -> set[tuple[int, ...]]:
        """Families in the order of a hash, until they have the share `held_out` of the problems."""
        sizes = Counter(map(_family, itertools.product(range(10), repeat=self.operands)))
        chosen: set[tuple[int, ...]] = set()
        missing = self.held_out * 10**self.operands
        for family in sorted(sizes, key=lambda family: digest(f"{self.name}/{family}")):
            if missing <= 0:
                break
            chosen.add(family)
            missing -= sizes[family]
        return chosen


def _family(digits: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(digits))


def _scratchpad(name: str, operands: int) -> Task:
    example = [3, 4, 8, 5, 2][:operands]
    prompt = "+".join(map(str, example))
    about = f"{prompt}= -> {derivation(example)}, graded by the text after #"
    return Task(name, about, operands, "+", sum, work=derivation, answer_after=MARK, judge=judge)


TASKS = {
    task.name: task
    for task in (
        _scratchpad("scratchpad", 4),
        _scratchpad("scratchpad-3", 3),
        _scratchpad("scratchpad-5", 5),
        Task("addition", "the sum of three digits: 3+4+8= -> 15", 3, "+", sum),
        Task("max-digits", "the larger of two digits: 3,7= -> 7", 2, ",", max),
    )
}
"""Name -> task."""
