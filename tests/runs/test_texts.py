"""Texts of tokens and their context, for tokenizers that split characters and words differently."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.embedded_policy import build_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rlobj.runs.texts import TokenTexts

TEXT = "The café costs 12 €; 日本語 and 🙂 too.\n\tA second line, " * 3


def byte_level():
    """A BPE of bytes with few merges: characters of several bytes are several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer.train_from_iterator(["The cafe costs and a second line"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def metaspace():
    """Words that begin with a mark for the space; other characters are bytes."""
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}}
    for piece in ("▁", "a", "b", "▁a", "▁ab"):
        vocabulary[piece] = len(vocabulary)
    merges = [("▁", "a"), ("▁a", "b")]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [(byte_level(), TEXT), (metaspace(), "ab ab 日 b a🙂b"), (build_tokenizer(), "3+4=7, 12 ")],
)
@pytest.mark.parametrize("size", [3, 20])
def test_contexts_are_the_parts_of_the_decoded_text(tokenizer, text, size):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    texts = TokenTexts(tokenizer)
    cut = len(ids) // 3
    sequences = [(ids[:cut], ids[cut:]), ([], []), (ids[:2], ids[::-1])]
    positions = np.arange(len(ids) - cut)
    before, after = texts.contexts(sequences, positions * 0, positions, size)
    whole = text.encode()
    ends = [
        len(tokenizer.decode(ids[:n]).replace("\N{REPLACEMENT CHARACTER}", "").encode())
        for n in range(len(ids) + 1)
    ]
    for place, (left, right) in enumerate(zip(before.to_pylist(), after.to_pylist(), strict=True)):
        at = cut + place
        assert left.replace("│", "") == whole[ends[max(at - size, 0)] : ends[at]].decode()
        assert left.count("│") == (place < size)
        assert right == whole[ends[at + 1] : ends[min(at + 1 + size, len(ids))]].decode()
    assert len(before[0].as_py()) > 1  # the end of the prompt
    assert before[0].as_py().endswith("│")


def test_context_stays_within_its_response():
    tokenizer = build_tokenizer()
    a, b = (tokenizer(text).input_ids for text in ("12=", "34="))
    texts, one = TokenTexts(tokenizer), np.array([0, 1])
    before, after = texts.contexts([(a, a), (b, b)], one, one * 0 + 1, 20)
    assert before.to_pylist() == ["12=│1", "34=│3"]
    assert after.to_pylist() == ["=", "="]


def test_texts_of_single_tokens():
    tokenizer = byte_level()
    texts = TokenTexts(tokenizer)
    euro = tokenizer("€").input_ids
    assert [texts.text(token) for token in euro] == ["\N{REPLACEMENT CHARACTER}"] * 3
    assert texts.text(tokenizer.eos_token_id) == "<|end|>"
    assert texts.text(10**6) == ""  # an embedding without a token
    [space, *_] = tokenizer(" a").input_ids
    assert texts.text(space) in (" ", " a")


def test_tokens_that_are_bytes_are_joined_to_characters():
    """A tokenizer with code of its own may name its tokens by bytes."""
    pieces = [b"1", *(bytes([byte]) for byte in "€".encode())]
    texts = TokenTexts(SimpleNamespace(convert_ids_to_tokens=pieces.__getitem__))
    assert texts.text(0) == "1"
    assert texts.joined(range(4)) == "1€"
