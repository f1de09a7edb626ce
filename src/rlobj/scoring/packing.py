"""Sequences as the inputs of a model: padded, packed, or with shared prompts."""

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
    prompt_ids, owner_of = numbered_prompts(sequences)
    lengths = torch.tensor([len(whole(response)) for _, response in sequences])
    columns = torch.arange(max(2, int(lengths.max())))  # the second pass has a token at least
    real = columns < lengths[:, None]
    input_ids = placed(real, [response for _, response in sequences])
    sizes = torch.tensor([len(prompt) for prompt in prompt_ids])
    prompt_mask = torch.arange(int(sizes.max())) >= sizes.max() - sizes[:, None]
    prompts = placed(prompt_mask, prompt_ids)
    padded = None if bool(prompt_mask.all()) else prompt_mask.long().to(device)
    response_mask = scored(real, sequences).to(device)
    owners = torch.tensor(owner_of).to(device)
    return input_ids.to(device), None, response_mask, None, prompts.to(device), padded, owners


def numbered_prompts(sequences: Pairs) -> tuple[list[tuple[int, ...]], list[int]]:
    """The different prompts in the order of their first response, and the number of each one's."""
    numbers: dict[tuple[int, ...], int] = {}
    owners = [numbers.setdefault(tuple(prompt) or (0,), len(numbers)) for prompt, _ in sequences]
    return list(numbers), owners


def check_prompts(sequences: Pairs) -> None:
    """Check that each response has a prompt.

    Raises:
        BatchError: a response has none.
    """
    for row, (prompt, response) in enumerate(sequences):
        if len(response) and not len(prompt):
            raise BatchError(f"sequence {row} has an empty prompt; add a token such as BOS")


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
