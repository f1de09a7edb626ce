"""The tokenizer of the embedded policy: one token per character."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

__all__ = ["ALPHABET", "SPECIAL", "VOCABULARY", "build_tokenizer", "unknown_characters"]

ALPHABET = "0123456789+-*,= "
"""Every character that the policy reads and writes."""

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
"""Token ids 0 to 3; the characters follow."""

VOCABULARY = len(SPECIAL) + len(ALPHABET)
"""V, the number of tokens."""


def unknown_characters(text: str) -> str:
    """Return the characters of a text that the policy cannot read, each once, in their order.

    Example:
        >>> unknown_characters("What is 1+2?")
        'Whatis?'
    """
    return "".join(character for character in dict.fromkeys(text) if character not in ALPHABET)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a transformers tokenizer over `ALPHABET`.

    It adds no special tokens and pads on the left. A character outside the alphabet becomes
    `<unk>`.

    Example:
        >>> tokenizer = build_tokenizer()
        >>> tokenizer.decode(tokenizer("3+4=").input_ids)
        '3+4='
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokens = {token: index for index, token in enumerate((*SPECIAL, *ALPHABET))}
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
