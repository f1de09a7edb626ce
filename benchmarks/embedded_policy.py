"""The recipe of the embedded policies, whose folders are a part of rlobj.

    python -m benchmarks.embedded_policy --out src/rlobj/models/policies

This is supervised training on one CPU thread, for two minutes. It leaves something to learn. For
`addition`, the targets are smoothed: the correct digit has probability 1 − smoothing, each other
digit smoothing / 9, so that the policy ranks the correct digit first but many of its samples are
wrong. For `scratchpad`, the responses have noise: a digit is replaced by another one, or a letter
precedes a character, and the response goes on from the right numbers. The policy imitates that. Its
training is short and ends at the full learning rate, so that many of its answers are wrong. For
`calculator`, most first turns are wrong guesses: the policy rarely asks, and can use what it is
told. `max-digits` has random weights.

The same processor and versions give the same weights to the bit. Others round differently, which
grows in hundreds of steps to another policy: with AVX2 in place of AVX-512, some weights differ by
0.5, and the loss on right held-out responses by at most 6%. That is why the weights are shipped.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlobj.data.problems import Problem
from rlobj.data.scratchpad import MARK, derivation
from rlobj.data.tasks import TASKS
from rlobj.models.embedded import ALPHABET, ALPHABETS

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


@dataclass(frozen=True)
class Recipe:
    """The settings of the supervised training."""

    steps: int
    """Optimizer steps; 0 leaves the weights random."""
    batch_size: int = 64
    """Answers per step, sampled with replacement."""
    learning_rate: float = 5e-3
    """Peak learning rate of AdamW: 10 steps of warm-up, then a cosine to `final` of it."""
    final: float = 0.05
    """Share of the peak learning rate at the end; 1 = constant after the warm-up."""
    smoothing: float = 0.4
    """Probability of all wrong digits together in the targets."""
    wrong_digits: float = 0.0
    """Probability that a digit of a response is replaced by another one."""
    stray_letters: float = 0.0
    """Probability that a letter is put before a character of a response."""
    guesses: float = 0.0
    """Probability that the first turn of a conversation is a guess in place of a call. The later
    turns, which copy what was told, are trained either way. 0: responses are one turn."""
    layers: int = 2
    """Number of the policy's layers."""
    width: int = 128
    """Width of the policy's MLPs."""


RECIPES = {
    "scratchpad": Recipe(
        steps=700,
        learning_rate=2e-3,
        final=1.0,
        smoothing=0.0,
        wrong_digits=0.03,
        stray_letters=0.004,
        layers=3,
        width=96,
    ),
    "calculator": Recipe(
        steps=500,
        batch_size=32,
        learning_rate=2e-3,
        smoothing=0.0,
        guesses=0.7,
        layers=3,
        width=96,
    ),
    "addition": Recipe(steps=600),
    "max-digits": Recipe(steps=0),
}


def demonstration(task: str, problem: Problem) -> tuple[str, str]:
    """The prompt, and a right response: with the calls and what the calculator answers."""
    numbers = [int(number) for number in re.findall("[0-9]+", problem.prompt)]
    response = problem.answer
    if task == "scratchpad":
        response = derivation(numbers)
    elif task == "calculator":
        response = f"?{numbers[0]}*{numbers[1]};{problem.answer};{MARK}{problem.answer}"
    return problem.prompt, response


def trained_policy(task: str, recipe: Recipe) -> PreTrainedModel:
    """The policy of a task after its supervised training."""
    tokenizer = build_tokenizer(ALPHABETS[task])
    model = build_policy(0, ALPHABETS[task], recipe.layers, recipe.width)
    pairs = [demonstration(task, problem) for problem in TASKS[task].problems("train")]
    train(model, tokenizer, pairs, recipe)
    return model


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    recipe: Recipe,
) -> None:
    """Minimise −Σ_k q_k log π_k over response tokens, where q are the smoothed targets.

    Trains `model` in place on one thread whatever torch's setting is. The global random state is
    not read.

    Args:
        model: a causal LM.
        tokenizer: one token a character; the ten digits in a row.
        pairs: (prompt, right response); the EOS token follows, which is not smoothed.
        recipe: the settings.
    """
    smoothed = _smoothed(tokenizer, model.config.vocab_size, recipe.smoothing)
    generator, noise = torch.Generator().manual_seed(0), random.Random(0)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    model.train()
    with _one_thread():
        for step in range(recipe.steps):
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * _schedule(step, recipe)
            rows = torch.randint(len(pairs), (recipe.batch_size,), generator=generator).tolist()
            drawn: list[Sequence[str]] = []
            for prompt, response in (pairs[row] for row in rows):
                drawn += _drawn(prompt, response, recipe, noise)
            tokens, target = _table(tokenizer, drawn)
            logits = model(input_ids=tokens, use_cache=False).logits
            loss = functional.cross_entropy(logits[target >= 0], smoothed[target[target >= 0]])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    model.eval()


def _drawn(prompt: str, response: str, recipe: Recipe, draw: random.Random) -> list[Sequence[str]]:
    """What is trained on of a demonstration: texts that are read and written, in turn.

    A conversation is call, observation, call and so on, each up to a semicolon, then the answer.
    """
    if not recipe.guesses:
        return [(prompt, _noisy(response, recipe, draw))]
    texts = [prompt, *re.split("(?<=;)", response)]
    if draw.random() >= recipe.guesses:
        return [texts]
    guess = "".join(draw.choices(string.digits, k=len(texts[-1]) - len(MARK)))
    return [(prompt, MARK + guess), ("".join(texts[:3]), *texts[3:])]


def _noisy(response: str, recipe: Recipe, draw: random.Random) -> str:
    """The response with wrong digits and stray letters."""
    noisy = ""
    for character in response:
        if draw.random() < recipe.stray_letters:
            noisy += draw.choice(string.ascii_lowercase)
        if character.isdigit() and draw.random() < recipe.wrong_digits:
            character = draw.choice(string.digits.replace(character, ""))
        noisy += character
    return noisy


def _table(
    tokenizer: PreTrainedTokenizerBase, drawn: Sequence[Sequence[str]]
) -> tuple[Tensor, Tensor]:
    """Tokens [P, T], and the token to be written after each of them [P, T]; −1 = none."""
    ids = tokenizer.get_vocab()
    rows, following = [], []
    for texts in drawn:
        tokens = [ids[character] for text in texts for character in text]
        written = [k % 2 for k, text in enumerate(texts) for _ in text]
        target = [token if write else -1 for token, write in zip(tokens, written, strict=True)]
        rows.append(torch.tensor(tokens))
        following.append(torch.tensor([*target[1:], tokenizer.eos_token_id]))
    pad = torch.nn.utils.rnn.pad_sequence  # padding on the right, which no token attends to
    return pad(rows, True), pad(following, True, -1.0)


def _smoothed(tokenizer: PreTrainedTokenizerBase, vocabulary: int, smoothing: float) -> Tensor:
    """[V, V]; row y is the target distribution if the correct token is y."""
    digits = torch.tensor(tokenizer("0123456789").input_ids)
    targets = torch.eye(vocabulary)
    targets[digits[:, None], digits] = smoothing / 9
    targets[digits, digits] = 1 - smoothing
    return targets


def _schedule(step: int, recipe: Recipe) -> float:
    """The learning rate, relative to its peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / recipe.steps))
    return min(1.0, (step + 1) / 10) * max(recipe.final, cosine)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """Write a model folder for each task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder, for a folder a task")
    out = parser.parse_args().out
    for task, recipe in RECIPES.items():
        trained_policy(task, recipe).save_pretrained(out / task)
        build_tokenizer(ALPHABETS[task]).save_pretrained(out / task)


if __name__ == "__main__":
    main()
