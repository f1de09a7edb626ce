"""Compare the tokenizers of two models that read the same token ids, and translate end tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlobj.base.interleaved import Interleaved


def tokenizer_difference(ours: Any, theirs: Any, end: int | None) -> str | None:
    """Describe why a teacher cannot read the policy's token ids; None if it can.

    Each id of the policy must have the same text in the teacher's vocabulary. Further ids of the
    teacher do not matter, because the policy never draws them. Neither does the size of the heads,
    which is often padded.

    Args:
        ours: the policy's tokenizer, of transformers.
        theirs: the teacher's tokenizer.
        end: the teacher's token that stands for the policy's end token; None = the same token.

    Returns:
        The first id that differs with both texts, or the setting `scores.NAME.end` to change.
    """
    here, there = ({index: text for text, index in x.get_vocab().items()} for x in (ours, theirs))
    for index in sorted(here):
        if here[index] != there.get(index):
            return (
                f"id {index} is {here[index]!r} in the policy's tokenizer and {there.get(index)!r} "
                "in the teacher's. Use a teacher with the policy's tokenizer"
            )
    own, other = ours.eos_token_id, theirs.eos_token_id
    if end is None and own != other:
        return (
            f"the policy ends a response with id {own} ({ours.eos_token!r}), and the teacher with "
            f"id {other} ({theirs.eos_token!r}): set scores.NAME.end={other}"
        )
    if end is not None and end not in there:
        return f"scores.NAME.end={end} is no token of the teacher; it ends with id {other}"
    return None


def with_end(response: Sequence[int], ours: int | None, end: int | None) -> Sequence[int]:
    """Return response ids with the teacher's end token in place of the policy's.

    Args:
        response: token ids that the policy drew.
        ours: the policy's end token.
        end: the teacher's; None = the response stays as it is.
    """
    if end is None:
        return response
    tokens = [end if token == ours else token for token in response]
    return Interleaved(tokens, response.gaps) if isinstance(response, Interleaved) else tokens
