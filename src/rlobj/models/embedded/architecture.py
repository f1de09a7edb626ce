"""The embedded policy: the Qwen3 architecture at 83,648 parameters."""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlobj.models.embedded.tokenizer import SPECIAL, VOCABULARY

__all__ = ["build_policy"]


def build_policy(seed: int) -> Qwen3ForCausalLM:
    """Build a policy with random float32 weights, without changing the global random state.

    Args:
        seed: of the weights.
    """
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=128,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL.index("<pad>"),
        bos_token_id=SPECIAL.index("<bos>"),
        eos_token_id=SPECIAL.index("<eos>"),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
