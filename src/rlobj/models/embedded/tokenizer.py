"""The tokenizer of the embedded policy: one token per character."""

from __future__ import annotations

import string

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

__all__ = ["ALPHABET", "SCRATCHPAD_ALPHABET", "SPECIAL", "alphabet_of", "build_tokenizer"]

ALPHABET = "0123456789+-*,= "
"""Every character that the policies of `addition` and `max-digits` read and write."""

SCRATCHPAD_ALPHABET = ALPHABET + ";#" + string.ascii_lowercase
"""The characters of the policies of scratchpads; the letters mean nothing."""

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
"""Token ids 0 to 3; the characters follow."""


def alphabet_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the characters of a tokenizer that `build_tokenizer` made."""
    return "".join(tokenizer.convert_ids_to_tokens(list(range(len(SPECIAL), len(tokenizer)))))


def build_tokenizer(alphabet: str = ALPHABET) -> PreTrainedTokenizerFast:
    """Build a transformers tokenizer with one token for each character of an alphabet.

    It adds no special tokens and pads on the left. Another character becomes `<unk>`.

    Args:
        alphabet: the characters; all ten digits in a row are among them.

    Example:
        >>> tokenizer = build_tokenizer()
        >>> tokenizer.decode(tokenizer("3+4=").input_ids)
        '3+4='
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokens = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    characters = Tokenizer(models.WordLevel(tokens, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=characters,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )
