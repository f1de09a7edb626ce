"""Texts of tokens, and of their context in a response, without decoding every token anew."""

import codecs
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from rlobj.base.interleaved import own, whole

Ids = Sequence[int]
Ints = NDArray[np.int64]


BOUNDARY = "│"


class _Pieces(dict[int, bytes]):
    """The bytes of the tokens that were asked for; `partial` are those that are no whole text."""

    def __init__(self, find: Callable[[int], bytes]) -> None:
        self._find, self.partial = find, set[int]()

    def __missing__(self, token: int) -> bytes:
        piece = self[token] = self._find(token)
        if piece.decode("utf-8", "replace").encode() != piece:
            self.partial.add(token)
        return piece


class TokenTexts:
    """The text of each token of a tokenizer, as UTF-8.

    A token may be a part of a character. The character then belongs to the token that completes it.

    Args:
        tokenizer: a transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        self._bytes: dict[str, int] = {}  # byte-level BPE: of each character
        if decoder is not None and b"ByteLevel" in decoder.__getstate__():
            from transformers.convert_slow_tokenizer import bytes_to_unicode

            self._bytes = {character: byte for byte, character in bytes_to_unicode().items()}
        self._known = _Pieces(self._find)

    def text(self, token: int) -> str:
        """The text of one token; a part of a character is shown as U+FFFD."""
        return self._known[token].decode("utf-8", "replace")

    def joined(self, tokens: Ids) -> str:
        """The text of consecutive tokens."""
        return b"".join(self._pieces(tokens)).decode()

    def _find(self, token: int) -> bytes:
        text = self._tokenizer.convert_ids_to_tokens(int(token))
        if text is None:  # an embedding without a token
            return b""
        if isinstance(text, bytes):  # tokenizers with code, such as the first Qwen's
            return text
        if self._bytes:
            whole_bytes = all(character in self._bytes for character in text)
            return bytes(map(self._bytes.__getitem__, text)) if whole_bytes else text.encode()
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("▁", " ").encode()

    def _pieces(self, tokens: Ids) -> list[bytes]:
        """The texts of consecutive tokens; each is valid UTF-8."""
        pieces = list(map(self._known.__getitem__, tokens))
        if not self._known.partial or self._known.partial.isdisjoint(tokens):
            return pieces
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        last = len(pieces) - 1
        return [decoder.decode(piece, i == last).encode() for i, piece in enumerate(pieces)]

    def contexts(
        self, sequences: Sequence[tuple[Ids, Ids]], rows: Ints, positions: Ints, size: int
    ) -> tuple[Any, Any]:
        """The texts before and after some tokens, as two string arrays of pyarrow.

        `BOUNDARY` stands between the prompt, what the policy wrote and what it read.

        Args:
            sequences: prompt ids and response ids of each response.
            rows: the response of each token, [M].
            positions: the position of each token in its response, [M].
            size: the largest number of tokens on each side; the prompt counts.
        """
        known: dict[int, tuple[bytes, list[int], Ints]] = {}
        for row in set(rows.tolist()):
            prompt, response = sequences[row][0][-size - 3 :], sequences[row][1]  # 3: of characters
            mine = own(response)
            pieces = _marked(self._pieces([*prompt, *whole(response)]), len(prompt), mine)
            offsets = [0, *itertools.accumulate(map(len, pieces))]
            marks = np.ones(len(response), bool) if mine is None else mine
            places = np.flatnonzero(marks) + len(prompt)
            known[row] = b"".join(pieces), offsets, places
        before, after = list[bytes](), list[bytes]()
        for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
            text, offsets, places = known[row]
            at = int(places[position])
            before.append(text[offsets[max(at - size, 0)] : offsets[at]])
            after.append(text[offsets[at + 1] : offsets[min(at + 1 + size, len(offsets) - 1)]])
        return pyarrow.array(before, pyarrow.string()), pyarrow.array(after, pyarrow.string())


def _marked(pieces: list[bytes], prompt: int, mine: NDArray[np.bool_] | None) -> list[bytes]:
    """The pieces of a response with `BOUNDARY` at the end of the prompt and of each part.

    Args:
        pieces: of the prompt and of all that was said.
        prompt: the number of pieces of the prompt.
        mine: whether the policy wrote a token of what was said; None = all of it.
    """
    ends = [] if mine is None else np.flatnonzero(np.diff(mine)) + 1 + prompt
    for end in (prompt, *ends):
        if end:
            pieces[end - 1] += BOUNDARY.encode()
    return pieces
