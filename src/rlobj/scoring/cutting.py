"""Which sequences go through a model together, so that their memory fits a budget.

A micro-batch has a row for each sequence, with padding or packed. With shared prompts, its first
pass has a row for each prompt, and its second one a row for each response, which reads the keys and
values of its prompt. A group of G responses of R tokens to a prompt of P tokens then takes
P + G·(R − 1) tokens in place of G·(P + R): the last hidden state of the prompt predicts the first
token of each response, and the last token of a response predicts nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy

from rlobj.base.interleaved import whole
from rlobj.scoring.packing import Pairs, numbered_prompts

PASS_TOKENS = 256
"""What a forward pass of a micro-batch costs beside its tokens, in tokens."""
SECOND_PASS = 32
"""What the second pass costs, likewise."""
REPEATED = 1 / 8
"""The time of a response to read the keys and values of one prompt token, in computed tokens."""
KEPT = 1 / 4
"""The memory of a response's copy of these keys and values, in that of a computed token."""


class Cut(NamedTuple):
    """Some sequences cut into micro-batches.

    Attributes:
        parts: the indices of each micro-batch's sequences.
        tokens: that each micro-batch computes, without padding.
        cost: of all, in computed tokens with padding.
        shared: each different prompt goes through the model once in a micro-batch.
    """

    parts: list[list[int]]
    tokens: list[int]
    cost: float
    shared: bool = False


def sequence_length(prompt: Sequence[int], response: Sequence[int]) -> int:
    """The tokens of a sequence that go through the model."""
    return len(prompt) + len(whole(response))


def cut_sequences(
    sequences: Pairs, budget: int, packed: bool = False, shared: bool = False, join: bool = False
) -> Cut:
    """Cut sequences into micro-batches.

    Args:
        sequences: pairs of prompt and response token ids.
        budget: the memory of a micro-batch, in computed tokens with padding.
        packed: rows are packed, not padded.
        shared: prompts are shared.
        join: a single micro-batch is worth a third more tokens.
    """
    if shared:
        rows, packed = Rows.with_shared_prompts(sequences), False
    else:
        rows = Rows([sequence_length(*pair) for pair in sequences])
    everything, passes = list(range(len(rows.own))), rows.passes(budget)
    most = max(rows.least() * 4 / 3 if join else 0, rows.least() + passes if shared else 0)
    if rows.cost(everything) <= most and rows.memory(everything) <= budget:
        parts = [everything]
    else:
        parts = rows.first_fit(budget) if packed else rows.cheapest(budget)
    tokens = [rows.tokens(part) for part in parts]
    computed = sum(tokens) if packed else sum(map(rows.cost, parts))
    return Cut(parts, tokens, computed + len(parts) * passes, shared)


def micro_batches(
    lengths: Sequence[int], budget_tokens: int, packed: bool = False
) -> list[list[int]]:
    """Group sequences into micro-batches that fit a budget, for a loop of one's own.

    A padded micro-batch has count × longest tokens. No other grouping has a smaller sum of these
    tokens and of the cost of each forward pass, min(`PASS_TOKENS`, budget / 16). A packed
    micro-batch has the sum of the lengths. Each sequence, the longest first, goes into the first
    micro-batch with enough room. A sequence longer than the budget has its own micro-batch. The
    longest sequences come first, so a lack of memory shows soon.

    Args:
        lengths: tokens of each sequence, prompt and response together.
        budget_tokens: maximum number of tokens of a micro-batch.
        packed: True if the sequences are packed, not padded.

    Returns:
        Lists of indices into `lengths`, each index once.

    >>> micro_batches([3, 9, 8, 2], 18)
    [[1, 2], [0, 3]]
    >>> micro_batches([64, 4000, 64, 64], 16384)
    [[1], [0, 2, 3]]
    >>> micro_batches([3, 9, 8, 2], 12, packed=True)
    [[1, 0], [2, 3]]
    """
    rows = Rows(lengths)
    return rows.first_fit(budget_tokens) if packed else rows.cheapest(budget_tokens)


class Rows:
    """The rows of sequences, which may share prompts.

    Args:
        own: the tokens of each sequence's own row.
        owners: the number of the prompt that it reads; None = whole rows, which read none.
        prompts: the tokens of each prompt.
    """

    def __init__(
        self, own: Sequence[int], owners: Sequence[int] | None = None, prompts: Sequence[int] = (0,)
    ) -> None:
        self.own, self.prompts = own, prompts
        self.owners = [0] * len(own) if owners is None else owners
        self._shared = owners is not None

    @classmethod
    def with_shared_prompts(cls, sequences: Pairs) -> Self:
        """Those whose equal prompts have one row."""
        prompts, owners = numbered_prompts(sequences)
        lengths = [max(len(whole(response)) - 1, 0) for _, response in sequences]
        return cls(lengths, owners, [len(prompt) for prompt in prompts])

    def passes(self, budget: int) -> float:
        """What the passes of a micro-batch cost beside their tokens, in tokens."""
        return min(PASS_TOKENS, budget / 16) + self._shared * min(SECOND_PASS, budget / 16)

    def tokens(self, part: Sequence[int]) -> int:
        """The tokens that a micro-batch computes, without padding."""
        prompts = {self.owners[i] for i in part}
        return sum(self.prompts[number] for number in prompts) + sum(self.own[i] for i in part)

    def least(self) -> float:
        """What all sequences would cost in one micro-batch without padding."""
        repeated = sum(self.prompts[owner] for owner in self.owners)
        return self.tokens(range(len(self.own))) + REPEATED * repeated

    def cost(self, part: Sequence[int], of_repeated: float = REPEATED) -> float:
        """What a micro-batch costs, in computed tokens with padding, without that of its passes."""
        prompts = {self.owners[i] for i in part}
        longest = max((self.prompts[number] for number in prompts), default=0)
        widest = max((self.own[i] for i in part), default=0)
        return len(prompts) * longest + len(part) * (widest + of_repeated * longest)

    def memory(self, part: Sequence[int]) -> float:
        """The memory of a micro-batch, in computed tokens with padding."""
        return self.cost(part, KEPT)

    def cheapest(self, budget: int) -> list[list[int]]:
        """Micro-batches whose memory is at most a budget, or that have one sequence.

        They are cut by dynamic programming in two orders, by groups and by the length of rows, and
        the cheaper cut is taken. A group that is cut has its prompt in each part.
        """
        widest = [0] * len(self.prompts)
        for owner, size in zip(self.owners, self.own, strict=True):
            widest[owner] = max(widest[owner], size)
        places = range(len(self.own))
        orders = [sorted(places, key=lambda i: (-self.own[i], self.owners[i], i))]
        if self._shared:
            by_group = [(-widest[owner], owner) for owner in self.owners]
            orders.insert(0, sorted(places, key=lambda i: (*by_group[i], -self.own[i], i)))
        cuts = [self._cheapest(order, budget) for order in orders]
        return min(cuts, key=lambda cut: cut[0])[1]

    def _cheapest(self, order: Sequence[int], budget: int) -> tuple[float, list[list[int]]]:
        """The least cost with which an order can be cut, and its micro-batches.

        Each array has an entry for each place where the micro-batch of the newest sequence may
        begin: the longest prompt and row since then, and the number of prompts.
        """
        count, passes = len(order), self.passes(budget)
        longest, widest, prompts = (numpy.zeros(count) for _ in range(3))
        least, starts = numpy.zeros(count + 1), [0] * (count + 1)
        newest: dict[int, int] = {}
        first = 0
        for stop, index in enumerate(order, 1):
            owner = self.owners[index]
            window = slice(first, stop)
            numpy.maximum(longest[window], self.prompts[owner], out=longest[window])
            numpy.maximum(widest[window], self.own[index], out=widest[window])
            prompts[max(newest.get(owner, -1) + 1, first) : stop] += 1
            newest[owner] = stop - 1
            rows = numpy.arange(stop - first, 0, -1)
            cost = prompts[window] * longest[window]
            cost += rows * (widest[window] + REPEATED * longest[window])
            memory = cost + rows * (KEPT - REPEATED) * longest[window]
            skipped = min(int((memory > budget).sum()), stop - 1 - first)
            first += skipped
            total = least[first:stop] + cost[skipped:]
            best = int(total.argmin())
            starts[stop] = first + best
            least[stop] = total[best] + passes
        parts: list[list[int]] = []
        end = count
        while end:
            parts.insert(0, list(order[starts[end] : end]))
            end = starts[end]
        return float(least[count]), parts

    def first_fit(self, budget: int) -> list[list[int]]:
        """Packed micro-batches: each sequence, the longest first, is in the first one with room."""
        parts: list[list[int]] = []
        room: list[int] = []
        for index in sorted(range(len(self.own)), key=lambda i: (-self.own[i], i)):
            part = next((i for i, free in enumerate(room) if free >= self.own[index]), len(room))
            if part == len(room):
                parts.append([])
                room.append(budget)
            parts[part].append(index)
            room[part] -= self.own[index]
        return parts
