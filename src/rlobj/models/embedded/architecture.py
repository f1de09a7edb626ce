"""The embedded policy: the Qwen3 architecture at 83,648 or 108,160 parameters."""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlobj.models.embedded.tokenizer import ALPHABET, SPECIAL

__all__ = ["build_policy"]


def build_policy(
    seed: int, alphabet: str = ALPHABET, layers: int = 2, width: int = 128
) -> Qwen3ForCausalLM:
    """Build a policy with random float32 weights, without changing the global random state.

    Args:
        seed: of the weights.
        alphabet: that of its tokenizer.
        layers: number of layers.
        width: of the MLPs.
    """
    config = Qwen3Config(
        vocab_size=len(SPECIAL) + len(alphabet),
        hidden_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=width,
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
