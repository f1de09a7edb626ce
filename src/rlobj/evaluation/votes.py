"""maj@k, also called cons@k: k responses vote with their answers; is the winner right?

1. A response without an answer does not vote; an undecided one votes with its answer, as a wrong
   one.
2. Equal answers are one candidate. All right answers are equal (each equals the gold answer); other
   answers are equal if their texts are, without spacing and sizing commands.
3. The candidate with most votes wins. A tie counts with the expected value of a random choice.
4. Without votes the problem is not solved.
5. For k below the number of responses: the exact expected value over all subsets of k.

Wang et al. 2023, arXiv:2203.11171.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlobj.rewards import Graded

MAX_RESPONSES = 1024
"""Of one problem: binomial coefficients of more do not fit a double."""

_SPACING = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[ ,;:!]|\s+|^\$+|\$+$|\.$")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")


@dataclass(frozen=True)
class Votes:
    """The votes of one problem's responses.

    Attributes:
        right: for the gold answer.
        wrong: for each answer that is not known to be right.
        without_answer: responses that do not vote.
    """

    right: int
    wrong: tuple[int, ...]
    without_answer: int

    @property
    def responses(self) -> int:
        """Number of responses."""
        return self.right + sum(self.wrong) + self.without_answer

    def majority_at(self, k: int) -> float:
        """Expected value of maj@k over all subsets of k responses: P(right wins).

        Args:
            k: 1 ≤ k ≤ responses ≤ MAX_RESPONSES.
        """
        if not 1 <= k <= self.responses:
            raise ValueError(f"maj@{k} needs at least {k} responses, got {self.responses}")
        return min(1.0, _winning_probability(self.right, self.wrong, self.without_answer, k))


def count_votes(grades: Sequence[Graded]) -> Votes:
    """Count the votes of the graded responses to one problem."""
    answers = [(_plain(g.answer), g.correct) for g in grades if g.answer is not None]
    right = {answer for answer, correct in answers if correct}
    votes = Counter(answer for answer, _ in answers)
    wrong = tuple(count for answer, count in votes.items() if answer not in right)
    return Votes(len(answers) - sum(wrong), wrong, len(grades) - len(answers))


def _plain(answer: str) -> str:
    return _FRACTION.sub(r"\\frac", _SPACING.sub("", answer.strip()))


def _winning_probability(right: int, others: Sequence[int], without_answer: int, k: int) -> float:
    """P(one candidate wins among k responses drawn without replacement).

    Σ_r C(m, r) Σ_t W(k − r, t)/(1 + t) / C(all, k), where W counts the ways to draw the other k − r
    so that t candidates have r votes as well and none has more. W is a product of polynomials in
    x (responses drawn) and y (ties), for each other candidate of m' votes
    Σ_{v<r} C(m', v) x^v + y C(m', r) x^r; the candidates with fewer than r votes and the responses
    without an answer are (1 + x)^m' together. All terms are positive: no digits are lost.
    """
    total = right + sum(others) + without_answer
    probability = 0.0
    for r in range(max(1, k - (total - right)), min(right, k) + 1):
        rivals = [size for size in others if size >= r]
        rest, free = total - right - sum(rivals), k - r
        ties = min(len(rivals), free // r)
        ways = torch.zeros(ties + 1, free + 1, dtype=torch.float64)
        for drawn in range(min(rest, free) + 1):
            ways[0, drawn] = float(math.comb(rest, drawn))
        for size in rivals:
            wider = ways.clone()
            for votes in range(1, min(r, free + 1)):
                wider[:, votes:] += float(math.comb(size, votes)) * ways[:, : free + 1 - votes]
            if r <= free:
                wider[1:, r:] += float(math.comb(size, r)) * ways[:-1, : free + 1 - r]
            ways = wider
        shares = ways[:, free] / torch.arange(1, ties + 2, dtype=torch.float64)
        probability += float(math.comb(right, r)) * float(shares.sum())
    return probability / float(math.comb(total, k))
