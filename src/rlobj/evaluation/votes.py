r"""maj@n, also called cons@n: the responses vote with their answers; is the winner right?

1. A response without an answer does not vote; an undecided one votes with its answer.
2. Equal answers are one candidate. All right answers are equal (each equals the gold answer); other
   answers are compared by their text without spacing and sizing commands, then by `equal`.
3. The candidate with most votes wins. A tie counts with the expected value of a random choice.
4. Without votes the problem is not solved. If an undecided candidate wins, it is undecided.

Wang et al. 2023, arXiv:2203.11171.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rlobj.evaluation.records import GradedProblem

Equal = Callable[[str, str], bool | None]
"""Whether two final answers are equal as mathematics; None = undecided."""

_SPACING = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[ ,;:!]|\s+|^\$+|\$+$|\.$")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")


@dataclass(frozen=True)
class Votes:
    """The votes of one problem's responses.

    Attributes:
        right: for the gold answer.
        wrong: for each wrong answer.
        undecided: for each answer that could not be compared with the gold answer.
        without_answer: responses that do not vote.
    """

    right: int
    wrong: tuple[int, ...]
    undecided: tuple[int, ...]
    without_answer: int

    @property
    def responses(self) -> int:
        """Number of responses."""
        return self.right + sum(self.wrong) + sum(self.undecided) + self.without_answer

    @property
    def majority(self) -> float:
        """1 if the gold answer wins, 0 if not; a share for ties, nan if an undecided answer wins.

        P(right wins) / (1 − P(an undecided answer wins)): what is undecided is in no mean.
        """
        most = max(self.right, *self.wrong, *self.undecided, 1)
        decided = (self.right, *self.wrong).count(most)
        if not decided:
            return math.nan if most in self.undecided else 0.0
        return (self.right == most) / decided


def count_votes(problem: GradedProblem, equal: Equal | None = None) -> Votes:
    """Group the answers of one problem's responses.

    Args:
        problem: the graded responses.
        equal: whether two answers are the same; None = only texts are compared. It is called for
            distinct answers that are not known to be right, with one answer of each group.
    """
    votes: Counter[str] = Counter()
    spelled: dict[str, str] = {}
    right, wrong = set[str](), set[str]()
    for grade in problem.grades:
        if grade.answer is not None:
            key = _plain(grade.answer)
            votes[key] += 1
            spelled.setdefault(key, grade.answer)
            if grade.correct is not None:
                (right if grade.correct else wrong).add(key)
    known = [key for key in votes if key in wrong and key not in right]
    undecided = [key for key in votes if key not in wrong and key not in right]
    groups: list[list[str]] = []
    for key in (*known, *undecided):  # wrong ones first, so that undecided ones can join them
        same = (g for g in groups if equal is not None and equal(spelled[g[0]], spelled[key]))
        group = next(same, None)
        if group is None:
            groups.append([key])
        else:
            group.append(key)
    sizes = [(group[0] in wrong, sum(votes[key] for key in group)) for group in groups]
    return Votes(
        sum(votes[key] for key in right),
        tuple(size for is_wrong, size in sizes if is_wrong),
        tuple(size for is_wrong, size in sizes if not is_wrong),
        len(problem.grades) - votes.total(),
    )


def _plain(answer: str) -> str:
    return _FRACTION.sub(r"\\frac", _SPACING.sub("", answer.strip()))
