"""The embedded policy: a tiny Qwen3 that rlobj trains on when no model is named.

    embedded_policy(task) -> model folder, a part of this package

`rlobj.settings.profiles` holds the settings that fit a run to it. Its tokenizer has one token per
character, and its model the Qwen3 architecture at 83,648 or 108,160 parameters. It was trained with
supervision, which leaves something to learn: benchmarks/embedded_policy.py has the recipe.
"""

import string
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

ALPHABET = "0123456789+-*,= "
"""Every character that the policies of `addition` and `max-digits` read and write."""

SCRATCHPAD_ALPHABET = ALPHABET + ";#" + string.ascii_lowercase
"""Those of the policy of `scratchpad`; the letters mean nothing."""

ALPHABETS = {
    "scratchpad": SCRATCHPAD_ALPHABET,
    "calculator": SCRATCHPAD_ALPHABET + "?",
    "addition": ALPHABET,
    "max-digits": ALPHABET,
}
"""The characters of the policy of each task."""

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
"""Token ids 0 to 3; the characters follow."""


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
        **{f"{token[1:-1]}_token": token for token in SPECIAL},
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )


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


def embedded_policy(task: str) -> Path:
    """The Hugging Face model folder, with tokenizer, of the policy for a task of `ALPHABETS`."""
    return Path(__file__).with_name("policies") / task
