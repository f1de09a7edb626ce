"""Batches of sequences: which sequences are in one batch, and how they are padded or packed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy
import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.base.interleaved import own, whole

Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Prompt and response token ids of each sequence. Of an `Interleaved` response, the policy's tokens
are scored, and the others are context."""


def sequence_length(prompt: Sequence[int], response: Sequence[int]) -> int:
    """The tokens of a sequence that go through the model."""
    return len(prompt) + len(whole(response))


PASS_TOKENS = 256
"""What a forward pass of a padded micro-batch costs beside its tokens, in tokens."""


def micro_batches(
    lengths: Sequence[int], budget_tokens: int, packed: bool = False
) -> list[list[int]]:
    """Group sequences into micro-batches whose tokens, with padding, fit a budget.

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
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    if packed:
        return _first_fit(lengths, budget_tokens, order)
    return _least_padding(lengths, budget_tokens, order)


def _least_padding(lengths: Sequence[int], budget: int, order: Sequence[int]) -> list[list[int]]:
    """The cheapest way to cut the sequences, in their order, by dynamic programming."""
    tokens = numpy.array([lengths[index] for index in order], dtype=numpy.int64)
    counts = numpy.arange(len(order), 0, -1)
    least = numpy.zeros(len(order) + 1)  # cost of the first sequences
    starts = [0] * (len(order) + 1)  # where their last micro-batch begins
    first, end = 0, len(order)
    for stop in range(1, end + 1):
        while first < stop - 1 and (stop - first) * tokens[first] > budget:
            first += 1
        cost = least[first:stop] + counts[end - stop + first :] * tokens[first:stop]
        best = int(cost.argmin())
        starts[stop], least[stop] = first + best, cost[best] + min(PASS_TOKENS, budget / 16)
    return cut_at(order, starts)


def cut_at(order: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    """The micro-batches of an order; `starts[stop]` is where the one that ends at `stop` begins."""
    batches: list[list[int]] = []
    end = len(order)
    while end:
        batches.insert(0, list(order[starts[end] : end]))
        end = starts[end]
    return batches


def _first_fit(lengths: Sequence[int], budget: int, order: Sequence[int]) -> list[list[int]]:
    batches: list[list[int]] = []
    room: list[int] = []
    for index in order:
        batch = next((i for i, free in enumerate(room) if free >= lengths[index]), len(room))
        if batch == len(room):
            batches.append([])
            room.append(budget)
        batches[batch].append(index)
        room[batch] -= lengths[index]
    return batches


def pad_sequences(
    sequences: Pairs, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    """One batch of sequences with padding on the right.

    Args:
        sequences: pairs of prompt and response token ids. An empty list gives one row of one token:
            its scores are empty, with a graph through all parameters, for a rank that must take
            part in a forward pass without sequences of its own.
        device: the device of the tensors.

    Returns:
        input_ids, attention_mask and response_mask, each [B, T]. The response mask is True at the
        tokens to score. The padding id is 0; no real token attends to it.

    Raises:
        BatchError: a response has no prompt.
    """
    check_prompts(sequences)
    sequences = sequences or [((0,), ())]
    lengths = _lengths(sequences)
    stops = lengths.sum(1, keepdim=True)
    columns = torch.arange(max(1, int(stops.max())))
    input_ids = placed(columns < stops, itertools.chain(*sequences))
    response_mask = (columns >= lengths[:, :1]) & (columns < stops)
    response_mask = scored(response_mask, sequences)
    # A row without tokens attends to its padding: attention over no token would be nan.
    attention_mask = (columns < stops.clamp(min=1)).long()
    return input_ids.to(device), attention_mask.to(device), response_mask.to(device)


def pack_sequences(
    sequences: Pairs, device: torch.device | str = "cpu"
) -> tuple[Tensor, None, Tensor, Tensor]:
    """One row with all sequences one after another, without padding.

    Args:
        sequences: pairs of prompt and response token ids, as for `pad_sequences`.
        device: the device of the tensors.

    Returns:
        input_ids, None for the attention mask, response_mask and position_ids, each [1, T]. The
        positions start at 0 for each sequence; attention separates the sequences by them.

    Raises:
        BatchError: a response has no prompt.
    """
    check_prompts(sequences)
    sequences = [pair for pair in sequences if len(pair[0]) or len(pair[1])] or [((0,), ())]
    lengths = _lengths(sequences)
    sizes = lengths.sum(1)
    starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    position_ids = torch.arange(len(starts)) - starts
    response_mask = position_ids >= torch.repeat_interleave(lengths[:, 0], sizes)
    response_mask, input_ids = scored(response_mask, sequences), _flat(itertools.chain(*sequences))
    rows = (column[None].to(device) for column in (input_ids, response_mask, position_ids))
    input_ids, response_mask, position_ids = rows
    return input_ids, None, response_mask, position_ids


def check_prompts(sequences: Pairs) -> None:
    """Check that each response has a prompt.

    Raises:
        BatchError: a response has none.
    """
    for row, (prompt, response) in enumerate(sequences):
        if len(response) and not len(prompt):
            raise BatchError(
                f"sequence {row} has an empty prompt, so that its first response token cannot be "
                "predicted. Add at least one prompt token, such as BOS."
            )


def _lengths(sequences: Pairs) -> Tensor:
    """The tokens of each prompt and of each whole response, [B, 2]."""
    return torch.tensor([(len(prompt), len(whole(response))) for prompt, response in sequences])


def scored(responses: Tensor, sequences: Pairs) -> Tensor:
    """The mask of whole responses, without the tokens that the policy did not write."""
    marks = [own(response) for _, response in sequences]
    if all(mark is None for mark in marks):
        return responses
    parts = [
        numpy.ones(len(response), bool) if mark is None else mark
        for (_, response), mark in zip(sequences, marks, strict=True)
    ]
    return responses.masked_scatter(responses, torch.from_numpy(numpy.concatenate(parts)))


def placed(places: Tensor, parts: Iterable[Sequence[int]]) -> Tensor:
    """The token ids of prompts and whole responses at the places of a mask, and 0 elsewhere."""
    ids = torch.zeros(places.shape, dtype=torch.long)
    ids[places] = _flat(parts)
    return ids


def _flat(parts: Iterable[Sequence[int]]) -> Tensor:
    """The token ids of prompts and whole responses, one after another."""
    # numpy converts an array at once, without a loop over its tokens
    arrays = [numpy.asarray(ids) for ids in map(whole, parts) if len(ids)]
    if not arrays:
        return torch.empty(0, dtype=torch.long)
    return torch.from_numpy(numpy.concatenate(arrays, dtype=numpy.int64))
