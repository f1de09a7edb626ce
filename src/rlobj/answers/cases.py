"""Tell answers for different cases apart: "If n is odd, 5. If n is even, 6." has two."""

from __future__ import annotations

import re

from rlobj.answers.boxes import Box, same_answer
from rlobj.answers.sentences import plain, split_sentences
from rlobj.answers.vocabulary import LISTS

_CASES = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in LISTS["cases"].items()}
_BEFORE = 1000
"""How far before a box the heading of its case may be, in characters."""
_AFTER = 200
"""How much of the text after a box is read, in characters."""


def in_cases(text: str, earlier: Box, later: Box) -> bool:
    r"""Return whether two answers are for different cases: "If n is odd, 5. If n is even, 6."

    An answer that adds up the cases, or concludes from them, is the answer of the response.
    """
    first, last = _case(text, 0, earlier), _case(text, earlier.end, later)
    if first is None or last is None or last > first or same_answer(earlier.content, later.content):
        return False
    between = text[earlier.end : later.start].partition(".")[2]
    return not _CASES["again"].search(between)


def _case(text: str, start: int, box: Box) -> int | None:
    """Return how much a sentence in one of several cases concludes, 0 to 2; None in no case."""
    before = text[max(start, box.start - _BEFORE) : box.start]
    sentence = " ".join(plain([part for part, _ in split_sentences(before)][-1]).split())
    after = plain(next(split_sentences(text[box.end : box.end + _AFTER]))[0])
    conditional = _CASES["before"].search(sentence) or _CASES["after"].match(after)
    if not conditional and not _CASES["heading"].search(before):
        return None
    if _CASES["sum"].search(sentence) or (not conditional and _CASES["extreme"].search(sentence)):
        return 2
    return int(not conditional and _CASES["result"].match(sentence) is not None)
