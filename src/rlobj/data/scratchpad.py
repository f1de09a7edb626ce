"""The task `scratchpad`: sums with the steps written out, and the judge of a response's tokens.

prompt `3+4+8+5=`, response `3+4=7;7+8=15;15+5=20#20`: only the text after the last # is graded, so
that a response can be right although its steps have wrong tokens.
"""

import itertools
import re
from collections.abc import Sequence

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
    match = re.search(r"\d+(\+\d+)+", prompt)
    if match is None:
        raise ValueError(f"the prompt {prompt!r} has no sum such as 3+4+8+5")
    numbers = [int(number) for number in match[0].split("+")]
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
