"""Built-in synthetic tasks: arithmetic for a tiny policy on one CPU thread.

`scratchpad` is a sum whose steps are written out. `scratchpad-3` and `scratchpad-5` have other
numbers of digits. In these, the response may have useless tokens, and a judge finds them.

`calculator` and `calculator-sum` are conversations with the environment `calculator`.

Every task is a finite list of problems with a fixed split into train and test. A problem and its
reorderings (3+4+8=, 8+3+4=) form a family and are in the same split, so that a test problem cannot
be answered from a reordered training problem.

The task `scratchpad`: sums with the steps written out, and the judge of a response's tokens.

prompt `3+4+8+5=`, response `3+4=7;7+8=15;15+5=20#20`: only the text after the last # is graded, so
that a response can be right although its steps have wrong tokens.

Problems of reasoning-gym (arXiv:2505.24760), made on this machine.

data: {source: "reasoning-gym:countdown", gym: {size: 5000, max_numbers: 4}}

The keys of `data.gym` are those of the dataset's configuration class.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlobj.base.errors import DataError, MissingExtra, nearest
from rlobj.data.problems import Problem, digest

MARK = "#"
"""The answer follows it."""

_END = "\0"


def derivation(numbers: Sequence[int]) -> str:
    """Write the sum of some numbers step by step, from left to right, and then the answer.

    Example:
        >>> derivation([3, 4, 8, 5])
        '3+4=7;7+8=15;15+5=20#20'
    """
    sums = list(itertools.accumulate(numbers))
    steps = [_step(*terms) for terms in zip(sums[:-1], numbers[1:], strict=True)]
    return f"{';'.join(steps)}{MARK}{sums[-1]}"


def judge(prompt: str, tokens: Sequence[str]) -> list[bool]:
    """Find the spurious tokens of a response that was graded right.

    In a valid derivation, each step adds two of the numbers that are left, which are those of the
    problem and earlier sums, in any order. When one number is left, the answer repeats it. A token
    is spurious if it departs from the valid derivation that the response follows: it is there in
    place of another token (a wrong digit), or in excess (a letter), or it is the first token after
    some that are missing. The later tokens are compared with the same derivation, so that a step
    that continues from the right number has no spurious token. The response is aligned with the
    derivation by the fewest edits, which come as late as possible: in `211;` for `21;` the second 1
    is spurious. The derivation that it follows is the one from left to right, or else, if that
    leaves fewer tokens spurious, the one whose steps are chosen one after the other, each as the
    valid step with the fewest departures from what was written.

    For sums of equally many numbers, the time is proportional to the length of the response.

    Args:
        prompt: text with a sum, such as `3+4+8+5=`.
        tokens: text of each token; empty for special tokens. The last one may be the end of the
            response; others are in excess.

    Returns:
        For each token, whether it is spurious. All are False exactly if the response is a valid
        derivation.

    Raises:
        ValueError: the prompt has no sum.

    Example:
        >>> response = "6+9=15;14+3=18;18+8=26#26"
        >>> [position for position, wrong in enumerate(judge("6+9+3+8=", response)) if wrong]
        [8]
    """
    found = re.search(r"\d+(\+\d+)+", prompt)
    if found is None:
        raise ValueError(f"the prompt {prompt!r} has no sum such as 3+4+8+5")
    numbers = [int(number) for number in found[0].split("+")]
    ended = tokens[-1:] in ([""], ("",))
    end = _END if ended else ""
    written = "".join(tokens) + end
    expected = derivation(numbers) + end
    if written == expected and all(tokens[:-1]):  # most responses of a good policy
        return [False] * len(tokens)
    marks = _departures(expected, written)
    if sum(marks) > 1:  # a valid derivation differs from another one in several tokens
        followed = _followed(numbers, written.removesuffix(end))
        marks = min(marks, _departures(followed + end, written), key=sum)
    ends = list(itertools.accumulate(len(token) for token in tokens))
    spurious = [a == b or any(marks[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
    return [*spurious[:-1], marks[-1]] if ended else spurious


def _step(a: int, b: int) -> str:
    return f"{a}+{b}={a + b}"


def _followed(numbers: Sequence[int], written: str) -> str:
    """The derivation whose steps are the nearest to the written ones, one after the other."""
    left, text = list(numbers), ""
    for step in written.rpartition(MARK)[0].split(";")[: len(numbers) - 1]:
        valid = {_step(a, b): (a, b) for a, b in itertools.permutations(left, 2)}
        nearest = step if step in valid else min(valid, key=lambda v: sum(_departures(v, step)))
        for number in valid[nearest]:
            left.remove(number)
        left.insert(0, sum(valid[nearest]))
        text += nearest + ";" * (len(left) > 1)
    return text + derivation(left)


def _departures(expected: str, written: str) -> list[bool]:
    """For each written character, whether it departs from the expected text.

    An alignment with the fewest edits decides; of several, one that departs as late as possible. At
    a departure it prefers replaced characters to surplus ones, and these to missing ones.
    """
    differing = [i for i, (a, b) in enumerate(zip(expected, written, strict=False)) if a != b]
    if len(expected) == len(written) and len(differing) < 2:  # most responses, without a search
        return [i in differing for i in range(len(written))]
    start = differing[0] if differing else min(len(expected), len(written))
    goal, rest = expected[start:], written[start:]
    marks = [False] * (len(written) + 1)
    edits = _edits(goal, rest)
    i = j = 0
    while i < len(rest) or j < len(goal):
        both = i < len(rest) and j < len(goal)
        if both and edits[i][j] == edits[i + 1][j + 1] + (rest[i] != goal[j]):
            marks[start + i] |= rest[i] != goal[j]
            i, j = i + 1, j + 1
        elif i < len(rest) and edits[i][j] == edits[i + 1][j] + 1:
            marks[start + i], i = True, i + 1
        else:
            marks[start + i], j = True, j + 1
    return marks[: len(written)]


def _edits(goal: str, rest: str) -> list[list[int]]:
    """edits[i][j]: the fewest edits that make rest[i:] equal to goal[j:]."""
    rows = [list(range(len(goal), -1, -1))]
    for character in reversed(rest):
        below, row = rows[-1], [rows[-1][-1] + 1]
        for j in range(len(goal) - 1, -1, -1):
            row.append(min(below[j + 1] + (character != goal[j]), below[j] + 1, row[-1] + 1))
        rows.append(row[::-1])
    return rows[::-1]


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
        return [each for each in self._all() if (_family(each) in test) == (split == "test")]

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


PREFIX = "reasoning-gym:"
REWARD = "reasoning_gym"
EXTRA = "reasoning-gym"
DEFAULTS = {"seed": 0, "size": 1000}
_WORKER = Path(__file__).parents[1] / "answers" / "gym_worker.py"


def is_gym(source: Any) -> bool:
    """Whether a source is a dataset of reasoning-gym."""
    return isinstance(source, str) and source.startswith(PREFIX)


def refuse_missing(source: str) -> None:
    """Refuse a source if reasoning-gym is not installed.

    Raises:
        MissingExtra: so it is.
    """
    if find_spec("reasoning_gym") is None:
        unsure = "Whether it has a dataset of this name can be checked only then."
        raise MissingExtra("reasoning-gym", EXTRA, source, unsure)


def gym_problems(source: str, split: str, settings: Mapping[str, Any]) -> list[Problem]:
    """Make the problems of a split; training and test problems have different seeds.

    `extra["reasoning_gym"]` has what the dataset's scorer needs. Another process makes the
    problems, with a fixed hash seed, because some datasets depend on it.

    Args:
        source: `reasoning-gym:NAME`.
        split: train or test.
        settings: of the dataset. `size` is the number of problems of each split, 1000 by default;
            `seed` is 0 by default. A test problem that is also a training problem is left out.

    Raises:
        MissingExtra: reasoning-gym, or a package that it needs, is not installed.
        DataError: an unknown dataset or setting, or a value that the dataset refuses.
    """
    refuse_missing(source)
    name, settings = source.removeprefix(PREFIX), {**DEFAULTS, **settings}
    done = subprocess.run(
        [sys.executable, "-P", str(_WORKER), "problems"],
        input=json.dumps({"name": name, "settings": settings, "split": split}),
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        why = (done.stderr.strip() or "crashed").splitlines()[-1]
        if absent := re.fullmatch(r"ModuleNotFoundError: No module named '([^']+)'", why):
            raise MissingExtra(absent[1], EXTRA, source)
        raise DataError(f"{source}: {why}")
    reply = json.loads(done.stdout)
    if "unknown" in reply:
        what = "dataset" if reply["unknown"] == name else f"setting of {name}"
        near = nearest(reply["unknown"], reply["known"])
        raise DataError(f"reasoning-gym has no {what} '{reply['unknown']}'.{near}")
    if "error" in reply:
        raise DataError(f"{source} with {settings}: {reply['error']}")
    return [
        Problem(
            id=f"{name}-{digest(entry['question'])[:16]}",
            prompt=entry["question"],
            answer=entry["answer"] or "",
            extra={REWARD: {"name": name, "settings": settings, "metadata": entry["metadata"]}},
        )
        for entry in reply["problems"]
    ]
