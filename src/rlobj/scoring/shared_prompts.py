"""Batches of sequences whose equal prompts go through the model once.

The first pass has a row for each prompt, the second one a row for each response, which reads the
keys and values of its prompt. A group of G responses of R tokens to a prompt of P tokens takes
P + G·(R − 1) tokens in place of G·(P + R): the last hidden state of the prompt predicts the first
token of each response, and the last token of a response predicts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from rlobj.base.interleaved import whole
from rlobj.scoring.packing import PASS_TOKENS, Pairs, check_prompts, cut_at, placed, scored

SECOND_PASS = 32
"""What the second pass costs beside its tokens, in tokens; the first costs `PASS_TOKENS`."""
REPEATED = 1 / 8
"""The time of a response to read the keys and values of one prompt token, in computed tokens."""
KEPT = 1 / 4
"""The memory of a response's copy of these keys and values, in that of a computed token."""


class PromptGroups:
    """Some sequences by their prompts.

    Args:
        sequences: pairs of prompt and response token ids.

    Attributes:
        prompts: the different prompts, in the order of their first response.
        owners: the number of each sequence's prompt.
    """

    def __init__(self, sequences: Pairs) -> None:
        numbers: dict[tuple[int, ...], int] = {}
        self.owners = [
            numbers.setdefault(tuple(prompt) or (0,), len(numbers)) for prompt, _ in sequences
        ]
        self.prompts = list(numbers)
        self._following = [max(len(whole(response)) - 1, 0) for _, response in sequences]

    def least(self) -> float:
        """What all sequences would cost in one micro-batch without padding."""
        repeated = sum(len(self.prompts[owner]) for owner in self.owners)
        return self.tokens(range(len(self.owners))) + REPEATED * repeated

    def tokens(self, part: Sequence[int]) -> int:
        """The tokens that a micro-batch computes, without padding."""
        prompts = {self.owners[i] for i in part}
        return sum(len(self.prompts[number]) for number in prompts) + sum(
            self._following[i] for i in part
        )

    def cost(self, part: Sequence[int]) -> float:
        """What a micro-batch costs, in computed tokens with padding, without that of a pass."""
        prompts = {self.owners[i] for i in part}
        longest = max((len(self.prompts[number]) for number in prompts), default=0)
        following = max((self._following[i] for i in part), default=0)
        return len(prompts) * longest + len(part) * (following + REPEATED * longest)

    def memory(self, part: Sequence[int]) -> float:
        """The memory of a micro-batch, in computed tokens with padding."""
        longest = max((len(self.prompts[self.owners[i]]) for i in part), default=0)
        return self.cost(part) + (KEPT - REPEATED) * len(part) * longest

    def micro_batches(self, budget: int) -> list[list[int]]:
        """Cut the sequences into micro-batches whose memory is at most a budget.

        They are cut by dynamic programming in two orders, by the length of responses and by groups,
        and the cheaper cut is taken. A group that is cut has its prompt in each part.

        Args:
            budget: computed tokens of a micro-batch, with padding.
        """
        following, widest = self._following, [0] * len(self.prompts)
        for owner, count in zip(self.owners, following, strict=True):
            widest[owner] = max(widest[owner], count)
        places = range(len(following))
        by_length = sorted(places, key=lambda i: (-following[i], self.owners[i], i))
        by_group = sorted(
            places, key=lambda i: (-widest[self.owners[i]], self.owners[i], -following[i], i)
        )
        cuts = [self._cheapest(order, budget) for order in (by_group, by_length)]
        return min(cuts, key=lambda cut: cut[0])[1]

    def _cheapest(self, order: Sequence[int], budget: int) -> tuple[float, list[list[int]]]:
        """The least cost with which an order can be cut, and its micro-batches.

        Each array has an entry for each place where the micro-batch of the newest sequence may
        begin: the longest prompt and response since then, and the number of prompts.
        """
        count = len(order)
        longest, widest, prompts = (numpy.zeros(count) for _ in range(3))
        least, starts = numpy.zeros(count + 1), [0] * (count + 1)
        newest: dict[int, int] = {}
        first = 0
        for stop, index in enumerate(order, 1):
            owner = self.owners[index]
            window = slice(first, stop)
            numpy.maximum(longest[window], len(self.prompts[owner]), out=longest[window])
            numpy.maximum(widest[window], self._following[index], out=widest[window])
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
            least[stop] = total[best] + passes_cost(budget)
        return float(least[count]), cut_at(order, starts)


def passes_cost(budget: int) -> float:
    """What the two passes of a micro-batch cost beside their tokens, in tokens."""
    return min(PASS_TOKENS, budget / 16) + min(SECOND_PASS, budget / 16)


def share_prompts(
    sequences: Pairs, device: torch.device | str = "cpu"
) -> tuple[Tensor | None, ...]:
    """One batch of sequences, each different prompt once.

    Args:
        sequences: pairs of prompt and response token ids, as for `pad_sequences`.
        device: the device of the tensors.

    Returns:
        The inputs of `PolicyScorer.forward`: responses, padded on the right, [B, R]; None;
        their mask of tokens to score, [B, R]; None; prompts, padded on the left, [P, T]; their mask
        of tokens, [P, T], or None without padding; and the prompt's number of each response, [B].

    Raises:
        BatchError: a response has no prompt.
    """
    check_prompts(sequences)
    sequences = sequences or [((0,), ())]
    groups = PromptGroups(sequences)
    lengths = torch.tensor([len(whole(response)) for _, response in sequences])
    columns = torch.arange(max(2, int(lengths.max())))  # the second pass has a token at least
    real = columns < lengths[:, None]
    input_ids = placed(real, [response for _, response in sequences])
    sizes = torch.tensor([len(prompt) for prompt in groups.prompts])
    prompt_mask = torch.arange(int(sizes.max())) >= sizes.max() - sizes[:, None]
    prompts = placed(prompt_mask, groups.prompts)
    padded = None if bool(prompt_mask.all()) else prompt_mask.long().to(device)
    response_mask = scored(real, sequences).to(device)
    owners = torch.tensor(groups.owners).to(device)
    return input_ids.to(device), None, response_mask, None, prompts.to(device), padded, owners
