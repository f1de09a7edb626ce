r"""maj@k, also called cons@k: k responses vote with their answers; is the winner right?

1. A response without an answer does not vote; an undecided one votes with its answer.
2. Equal answers are one candidate: right ones all are (each equals the gold answer), others by
   their text with spacing and sizing commands taken out, then by `equal`.
3. The largest candidate wins. A tie is drawn by lot, and the draw's expected value is counted.
4. If nobody votes the problem is not solved. If an undecided candidate wins it is undecided.
5. For k below the number of responses: the expected value over all subsets of k, worked out, not
   sampled.

Wang et al. 2023, arXiv:2203.11171.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from rlobj.evaluation.records import GradedProblem

__all__ = ["MAX_RESPONSES", "Votes", "count_votes"]

MAX_RESPONSES = 1024
"""Of one problem: binomial coefficients of more do not fit a double."""

Equal = Callable[[str, str], bool | None]
"""Whether two final answers are the same mathematics; None = could not tell."""

_SPACING = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[ ,;:!]|\s+|^\$+|\$+$|\.$")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")


@dataclass(frozen=True)
class Votes:
    """The votes of one problem's responses."""

    right: int
    """For the gold answer."""
    wrong: tuple[int, ...]
    """For each wrong answer."""
    undecided: tuple[int, ...]
    """For each answer that could not be compared with the gold answer."""
    silent: int
    """Responses without an answer."""

    @property
    def responses(self) -> int:
        """How many there are."""
        return self.right + sum(self.wrong) + sum(self.undecided) + self.silent

    def majority_at(self, k: int) -> float:
        """Expected value of maj@k over all subsets of k responses; nan if always undecided.

        P(right wins) / (1 − P(an undecided answer wins)): undecided is in no mean, as everywhere.

        Args:
            k: 1 ≤ k ≤ responses ≤ MAX_RESPONSES.
        """
        if not 1 <= k <= self.responses:
            raise ValueError(f"maj@{k} needs at least {k} responses, got {self.responses}")
        sizes = [self.right, *self.wrong, *self.undecided]
        decided = 1.0
        for place in range(1 + len(self.wrong), len(sizes)):
            decided -= _winning_chance(sizes, place, self.silent, k)
        if decided < 1e-12:
            return math.nan
        return min(1.0, _winning_chance(sizes, 0, self.silent, k) / decided)


def count_votes(answered: GradedProblem, equal: Equal | None = None) -> Votes:
    """Group the answers of one problem's responses.

    Args:
        answered: the graded responses.
        equal: tells whether two texts are the same answer; None = only texts are compared. It is
            asked about distinct answers not known to be right, each against one of a group.
    """
    texts: dict[str, int] = {}
    grades: dict[str, bool | None] = {}
    spelled: dict[str, str] = {}
    silent = 0
    for grade in answered.grades:
        if grade.answer is None:
            silent += 1
            continue
        key = _plain(grade.answer)
        texts[key] = texts.get(key, 0) + 1
        spelled.setdefault(key, grade.answer)
        if grade.correct is not None:
            grades[key] = grade.correct or grades.get(key, False)
    right = sum(votes for key, votes in texts.items() if grades.get(key))
    groups: list[tuple[str, int, bool]] = []  # one of its spellings, votes, known to be wrong
    others = sorted(
        (key for key in texts if not grades.get(key)), key=lambda key: key not in grades
    )
    for key in others:  # wrong ones first, so that undecided ones can join them
        place = _find(spelled[key], [group[0] for group in groups], equal)
        if place is None:
            groups.append((spelled[key], texts[key], key in grades))
        else:
            first, votes, wrong = groups[place]
            groups[place] = (first, votes + texts[key], wrong)
    return Votes(
        right,
        tuple(votes for _, votes, wrong in groups if wrong),
        tuple(votes for _, votes, wrong in groups if not wrong),
        silent,
    )


def _plain(answer: str) -> str:
    return _FRACTION.sub(r"\\frac", _SPACING.sub("", answer.strip()))


def _find(answer: str, candidates: Sequence[str], equal: Equal | None) -> int | None:
    if equal is None:
        return None
    return next((i for i, other in enumerate(candidates) if equal(other, answer)), None)


def _winning_chance(sizes: Sequence[int], place: int, silent: int, k: int) -> float:
    """The chance that one candidate wins among k responses drawn without replacement.

    Σ_r C(m, r) Σ_t W(k − r, t)/(1 + t) / C(all, k), where W counts the ways to draw the other k − r
    so that t candidates have r votes as well and none has more. W is a product of polynomials in
    x (responses drawn) and y (ties), for each other candidate of m' votes
    Σ_{v<r} C(m', v) x^v + y C(m', r) x^r; those that cannot reach r votes, and the silent, are
    (1 + x)^m' together. All terms are positive: no digits are lost.
    """
    total = sum(sizes) + silent
    others = [size for i, size in enumerate(sizes) if i != place]
    chance = 0.0
    fewest = max(1, k - (total - sizes[place]))
    for r in range(fewest, min(sizes[place], k) + 1):
        rivals = [size for size in others if size >= r]
        rest, free = total - sizes[place] - sum(rivals), k - r
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
        chance += float(math.comb(sizes[place], r)) * float(shares.sum())
    return chance / float(math.comb(total, k))
