"""Small tokenizers with the chat templates of TRL's wheel."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_TRL = importlib.util.find_spec("trl")
assert _TRL is not None
assert _TRL.origin is not None
TEMPLATES = Path(_TRL.origin).parent / "chat_templates"
_ADDED = re.compile(
    r"<\|[^|<>{}' ]+\|>|</?(?:think|tool_call|tool_response)>|<(?:start|end)_of_turn>"
)
ENDS = {
    "gemma": "<end_of_turn>",
    "llama3": "<|eot_id|>",
    "llama3_1": "<|eot_id|>",
    "cohere2": "<|END_OF_TURN_TOKEN|>",
}

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Compute an expression.",
            "parameters": {
                "type": "object",
                "properties": {
                    "expression": {"type": "string", "description": "What to compute."},
                    "digits": {"type": "integer", "description": "After the decimal point."},
                },
                "required": ["expression"],
            },
        },
    }
]


def bytes_tokenizer(added: list[str], **options: Any) -> Any:
    """Tokens for bytes and for "ab", and added tokens; those that end with |> are special."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.normalizer = normalizers.NFC()
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<|bos|>", **options)
    plain = {"normalized": False}
    tokenizer.add_tokens([AddedToken(x, special=x.endswith("|>"), **plain) for x in added])
    return tokenizer


def chat_tokenizer(name: str, template: str | None = None) -> Any:
    """A tokenizer with a template of TRL's wheel, and the added tokens that it writes."""
    text = template or (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    added = sorted({*_ADDED.findall(text), "<|im_start|>", "<|im_end|>", "<think>", "</think>"})
    tokenizer = bytes_tokenizer(added, eos_token=ENDS.get(name, "<|im_end|>"))
    tokenizer.chat_template, tokenizer.name_or_path = text, name
    return tokenizer
