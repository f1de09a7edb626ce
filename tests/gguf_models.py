"""Tiny models in GGUF files, as llama.cpp writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType, quants
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *bytes_to_unicode().values(), "12", "Ġ1"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def save_gguf(
    file: Path, *, seed: int = 0, architecture: str = "llama", left_out: str = ""
) -> dict[str, torch.Tensor]:
    """Write a random Llama with a byte-level tokenizer, its matrices in Q4_1.

    Args:
        file: to write.
        seed: of the weights.
        architecture: that the file says it has.
        left_out: a tensor that is not written.

    Returns:
        The weights by transformers' names, as the file has them.
    """
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    writer: Any = gguf.GGUFWriter(file, architecture)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(32)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    kinds = [gguf.TokenType.CONTROL] * len(SPECIAL)
    writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * (len(TOKENS) - len(kinds))])
    writer.add_token_merges(["1 2", "Ġ 1"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    stored: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        tensor, kind = parameter.detach().numpy(), GGMLQuantizationType.F32
        if tensor.ndim == 2:
            kind = GGMLQuantizationType.Q4_1
            # llama.cpp turns other pairs of a head's elements than transformers
            rotated = "q_proj" in name or "k_proj" in name
            pairs = (len(tensor) // 32, 2, 16, 64) if rotated else (1, 1, *tensor.shape)
            data = quants.quantize(tensor.reshape(pairs).swapaxes(1, 2).reshape(tensor.shape), kind)
            back = quants.dequantize(data, kind)
            pairs = (len(tensor) // 32, 16, 2, 64) if rotated else (1, 1, *tensor.shape)
            stored[name] = torch.tensor(back.reshape(pairs).swapaxes(1, 2).reshape(tensor.shape))
        else:
            data, stored[name] = tensor, parameter.detach()
        if name != left_out:
            target = names.get_name(name, try_suffixes=(".weight",))
            writer.add_tensor(f"{target}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored
