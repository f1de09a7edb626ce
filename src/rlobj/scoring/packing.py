"""Sequences into batches, padded or packed: which together, and how."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlobj.base.errors import BatchError, ConfigError


class ScoredSequence(NamedTuple):
    """A prompt and the response whose tokens are scored; a plain pair does as well."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]


def micro_batches(
    lengths: Sequence[int], budget_tokens: int, packed: bool = False
) -> list[list[int]]:
    """Gather sequences into micro-batches whose size, padding included, fits the budget.

    Padded, the size is count × longest: the longest sequence left opens a micro-batch and the next
    longest join it, so neighbours in length share one and little is padding; no other arrangement
    has fewer micro-batches. Packed, the size is the sum of the lengths: each sequence, the longest
    first, goes into the first micro-batch that has room. A sequence longer than the budget is
    alone. The largest come first: if they do not fit in memory, that shows at once.

    Args:
        lengths: Tokens of each sequence, prompt and response together.
        budget_tokens: Tokens that a micro-batch may hold.
        packed: The sequences will be packed, not padded.

    Returns:
        Lists of indices into `lengths`, each index once.

    Raises:
        ConfigError: A budget below 1.
        BatchError: A negative length.

    >>> micro_batches([3, 9, 8, 2], 18)
    [[1, 2], [0, 3]]
    >>> micro_batches([3, 9, 8, 2], 12, packed=True)
    [[1, 0], [2, 3]]
    """
    if budget_tokens < 1:
        raise ConfigError(f"budget_tokens is {budget_tokens}; it must be at least 1.")
    if min(lengths, default=0) < 0:
        raise BatchError(f"lengths holds {min(lengths)}; a sequence has at least 0 tokens.")
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    return (_first_fit if packed else _neighbours)(lengths, budget_tokens, order)


def _neighbours(lengths: Sequence[int], budget: int, order: Sequence[int]) -> list[list[int]]:
    batches: list[list[int]] = []
    longest = 0
    for index in order:
        if not batches or (len(batches[-1]) + 1) * longest > budget:
            batches.append([])
            longest = lengths[index]
        batches[-1].append(index)
    return batches


def _first_fit(lengths: Sequence[int], budget: int, order: Sequence[int]) -> list[list[int]]:
    batches: list[list[int]] = []
    room: list[int] = []
    for index in order:
        place = next((i for i, free in enumerate(room) if free >= lengths[index]), len(room))
        if place == len(room):
            batches.append([])
            room.append(budget)
        batches[place].append(index)
        room[place] -= lengths[index]
    return batches


def pad_sequences(
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    """Sequences as one right-padded batch.

    Args:
        sequences: Pairs of prompt and response token ids. None at all give one row of one token:
            scoring it gives no scores, but a graph through all parameters, for a rank that has to
            compute along with the others.
        device: Where to put the tensors.

    Returns:
        input_ids, attention_mask and response_mask, each [B, T]; the last is True where a token is
        to be scored. The padding id is 0; no real token attends to it.

    Raises:
        BatchError: A response that no token precedes, or what is no pair.
    """
    _check_pairs(sequences)
    sequences = sequences or [((0,), ())]
    lengths = torch.tensor([(len(prompt), len(response)) for prompt, response in sequences])
    stops = lengths.sum(1, keepdim=True)
    places = torch.arange(max(1, int(stops.max())))
    input_ids = torch.zeros(len(sequences), len(places), dtype=torch.long)
    input_ids[places < stops] = _flat(sequences)
    response_mask = (places >= lengths[:, :1]) & (places < stops)
    # A row without any token attends to its padding: attention over nothing is not a number.
    attention_mask = (places < stops.clamp(min=1)).long()
    return input_ids.to(device), attention_mask.to(device), response_mask.to(device)


def pack_sequences(
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device | str = "cpu"
) -> tuple[Tensor, None, Tensor, Tensor]:
    """Sequences one after another in one row, without padding.

    Args:
        sequences: As for `pad_sequences`.
        device: Where to put the tensors.

    Returns:
        input_ids, no attention_mask, response_mask and position_ids, each [1, T]. The positions
        start again at 0 with every sequence, which is how attention tells them apart.

    Raises:
        BatchError: A response that no token precedes, or what is no pair.
    """
    _check_pairs(sequences)
    sequences = [pair for pair in sequences if len(pair[0]) or len(pair[1])] or [((0,), ())]
    lengths = torch.tensor([(len(prompt), len(response)) for prompt, response in sequences])
    sizes = lengths.sum(1)
    starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    position_ids = torch.arange(len(starts)) - starts
    response_mask = position_ids >= torch.repeat_interleave(lengths[:, 0], sizes)
    input_ids = _flat(sequences)
    rows = (x[None].to(device) for x in (input_ids, response_mask, position_ids))
    input_ids, response_mask, position_ids = rows
    return input_ids, None, response_mask, position_ids


def _check_pairs(sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
    for row, pair in enumerate(sequences):
        whole = not isinstance(pair, str) and hasattr(pair, "__len__") and len(pair) == 2
        if not whole or any(isinstance(part, str) or not hasattr(part, "__len__") for part in pair):
            raise BatchError(
                f"sequence {row} is {reprlib.repr(pair)}; expected a pair of prompt and response "
                "token ids, such as ([5, 6, 7], [8, 9])."
            )
        prompt, response = pair
        if len(response) and not len(prompt):
            raise BatchError(
                f"sequence {row} has an empty prompt; its first response token has nothing to be "
                "predicted from. Put at least one token before it, such as the BOS token."
            )


def _flat(sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Tensor:
    import numpy  # reads an array without looking at its tokens one by one

    parts = [numpy.asarray(part) for pair in sequences for part in pair if len(part)]
    if not parts:
        return torch.empty(0, dtype=torch.long)
    return torch.from_numpy(numpy.concatenate(parts, dtype=numpy.int64))
