"""The supervised training of the embedded policy, before reinforcement learning.

It leaves something to learn. For `addition`, the targets are smoothed: the correct digit has
probability 1 − smoothing, each other digit smoothing / 9, so that the policy ranks the correct
digit first but many of its samples are wrong. For scratchpads, the responses have noise: a digit is
replaced by another one, or a letter precedes a character, and the response goes on from the right
numbers. The policy imitates that. Its training is short and ends at the full learning rate, so that
many of its answers are wrong.
"""

from __future__ import annotations

import contextlib
import math
import random
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlobj.models.embedded.tokenizer import ALPHABET, SCRATCHPAD_ALPHABET

__all__ = ["RECIPES", "Progress", "WarmStart", "warm_start"]

Progress = Callable[[int, int, float], None]
"""Called with (steps done, number of steps, loss in nats per answer token)."""


@dataclass(frozen=True)
class WarmStart:
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
    alphabet: str = ALPHABET
    """The characters of the policy."""
    layers: int = 2
    """Number of the policy's layers."""
    width: int = 128
    """Width of the policy's MLPs."""


_SCRATCHPAD = WarmStart(
    steps=700,
    learning_rate=2e-3,
    final=1.0,
    smoothing=0.0,
    wrong_digits=0.03,
    stray_letters=0.004,
    alphabet=SCRATCHPAD_ALPHABET,
    layers=3,
    width=96,
)
RECIPES = {
    **dict.fromkeys(("scratchpad", "scratchpad-3", "scratchpad-5"), _SCRATCHPAD),
    "addition": WarmStart(steps=600),
    "max-digits": WarmStart(steps=0),
}
"""The supervised training of each task that has an embedded policy."""


def warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    recipe: WarmStart,
    *,
    seed: int,
    progress: Progress | None = None,
) -> None:
    """Minimise −Σ_k q_k log π_k over response tokens, where q are the smoothed targets.

    Trains `model` in place on the CPU, on one thread whatever torch's setting is: the same seed and
    versions give the same weights to the bit. The global random state is not read.

    Args:
        model: a causal LM.
        tokenizer: one token a character; the ten digits in a row.
        pairs: (prompt, right response); the EOS token follows, which is not smoothed.
        recipe: the settings.
        seed: of the order of the pairs and of the noise.
        progress: called after each step.
    """
    smoothed = _smoothed(tokenizer, model.config.vocab_size, recipe.smoothing)
    generator, noise = torch.Generator().manual_seed(seed), random.Random(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    model.train()
    with _one_thread():
        for step in range(recipe.steps):
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * _schedule(step, recipe)
            rows = torch.randint(len(pairs), (recipe.batch_size,), generator=generator).tolist()
            drawn = [(pairs[row][0], _noisy(pairs[row][1], recipe, noise)) for row in rows]
            tokens, target = _table(tokenizer, drawn)
            logits = model(input_ids=tokens, use_cache=False).logits
            loss = functional.cross_entropy(logits[target >= 0], smoothed[target[target >= 0]])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if progress is not None:
                progress(step + 1, recipe.steps, loss.item())
    model.eval()


def _noisy(response: str, recipe: WarmStart, draw: random.Random) -> str:
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
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, str]]
) -> tuple[Tensor, Tensor]:
    """Tokens [P, T], and the response token that follows each of them [P, T]; −1 = none."""
    ids = tokenizer.get_vocab()
    rows, following = [], []
    for prompt, response in pairs:
        answer = [*(ids[character] for character in response), tokenizer.eos_token_id]
        rows.append(torch.tensor([*(ids[character] for character in prompt), *answer[:-1]]))
        following.append(torch.tensor([-1] * (len(prompt) - 1) + answer))
    pad = torch.nn.utils.rnn.pad_sequence  # padding on the right, which no token attends to
    return pad(rows, True), pad(following, True, -1.0)


def _smoothed(tokenizer: PreTrainedTokenizerBase, vocabulary: int, smoothing: float) -> Tensor:
    """[V, V]; row y is the target distribution if the correct token is y."""
    digits = torch.tensor(tokenizer("0123456789").input_ids)
    targets = torch.eye(vocabulary)
    targets[digits[:, None], digits] = smoothing / 9
    targets[digits, digits] = 1 - smoothing
    return targets


def _schedule(step: int, recipe: WarmStart) -> float:
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
