"""Sequences into padded batches: which together, and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlobj.errors import BatchError, ConfigError


class ScoredSequence(NamedTuple):
    """A prompt and the response whose tokens are scored; a plain pair does as well."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]


def micro_batches(lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Pack sequences into micro-batches by length: the fewest whose padded size fits the budget.

    The longest sequence left opens a micro-batch and the next longest join it while
    count × longest ≤ budget_tokens, so neighbours in length share one and little is padding. A
    sequence longer than the budget is alone. The longest sequences come first: if they do not fit
    in memory, that shows at once.

    Args:
        lengths: Tokens of each sequence, prompt and response together.
        budget_tokens: Padded tokens that a micro-batch may hold.

    Returns:
        Lists of indices into `lengths`, each index once.

    Raises:
        ConfigError: A budget below 1.
        BatchError: A negative length.

    >>> micro_batches([3, 9, 8, 2], 18)
    [[1, 2], [0, 3]]
    """
    if budget_tokens < 1:
        raise ConfigError(f"budget_tokens is {budget_tokens}; it must be at least 1.")
    if min(lengths, default=0) < 0:
        raise BatchError(f"lengths holds {min(lengths)}; a sequence has at least 0 tokens.")
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if not batches or (len(batches[-1]) + 1) * longest > budget_tokens:
            batches.append([])
            longest = lengths[index]
        batches[-1].append(index)
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
        BatchError: A response that no token precedes.
    """
    sequences = sequences or [((0,), ())]
    for row, (prompt, response) in enumerate(sequences):
        if len(response) and not len(prompt):
            raise BatchError(
                f"sequence {row} has an empty prompt; its first response token has nothing to be "
                "predicted from. Put at least one token before it, such as the BOS token."
            )
    lengths = torch.tensor([(len(prompt), len(response)) for prompt, response in sequences])
    stops = lengths.sum(1, keepdim=True)
    places = torch.arange(max(1, int(stops.max())))
    flat = [
        token for prompt, response in sequences for part in (prompt, response) for token in part
    ]
    input_ids = torch.zeros(len(sequences), len(places), dtype=torch.long)
    input_ids[places < stops] = torch.tensor(flat, dtype=torch.long)
    response_mask = (places >= lengths[:, :1]) & (places < stops)
    # A row without any token attends to its padding: attention over nothing is not a number.
    attention_mask = (places < stops.clamp(min=1)).long()
    return input_ids.to(device), attention_mask.to(device), response_mask.to(device)
