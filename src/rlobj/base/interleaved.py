"""Token ids of a policy, and what others said between them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy


class Interleaved(Sequence[int]):
    """The policy's tokens of a conversation: a sequence of these tokens alone.

    Example: the policy writes 5 6, reads 1 2, and writes 7
        >>> tokens = Interleaved([5, 6, 7], [(2, [1, 2])])
        >>> list(tokens), whole(tokens).tolist(), own(tokens).tolist()
        ([5, 6, 7], [5, 6, 1, 2, 7], [True, True, False, False, True])

    Args:
        tokens: of the policy.
        gaps: (place, token ids) pairs, with ascending places: the policy reads these ids before it
            writes `tokens[place]`.
    """

    __slots__ = ("gaps", "tokens")

    def __init__(self, tokens: Sequence[int], gaps: Sequence[tuple[int, Sequence[int]]]) -> None:
        self.tokens, self.gaps = tokens, tuple(gaps)

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[int]:
        return iter(self.tokens)

    def __getitem__(self, index: Any) -> Any:
        """A token; or, for `[:n]`, the first tokens with what was read before them."""
        if not isinstance(index, slice):
            return self.tokens[index]
        kept = self.tokens[index]
        return Interleaved(kept, [gap for gap in self.gaps if gap[0] < len(kept)])


def whole(response: Sequence[int]) -> Any:
    """All token ids of a response in the order in which the policy reads them."""
    if type(response) is not Interleaved:  # isinstance is slow for an abstract base
        return response
    ids, start, parts = numpy.asarray(response.tokens, numpy.int32), 0, []
    for place, read in response.gaps:
        parts += [ids[start:place], numpy.asarray(read, numpy.int32)]
        start = place
    return numpy.concatenate([*parts, ids[start:]])


def own(response: Sequence[int]) -> Any:
    """Which of `whole(response)` the policy wrote, bool; None = all."""
    if type(response) is not Interleaved:
        return None
    start, parts = 0, []
    for place, read in response.gaps:
        parts += [numpy.ones(place - start, bool), numpy.zeros(len(read), bool)]
        start = place
    return numpy.concatenate([*parts, numpy.ones(len(response) - start, bool)])
