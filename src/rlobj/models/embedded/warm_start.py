"""The supervised training of the embedded policy, before reinforcement learning.

The targets are smoothed: the correct digit has probability 1 − smoothing, each other digit
smoothing / 9. The trained policy ranks the correct digit first, but many of its samples are wrong.
Reinforcement learning can improve that.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlobj.data.problems import Problem

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
    """Peak learning rate of AdamW: 10 steps of warm-up, then a cosine to 5% of it."""
    smoothing: float = 0.4
    """Probability of all wrong digits together in the targets."""


RECIPES = {"addition": WarmStart(steps=600), "max-digits": WarmStart(steps=0)}
"""The supervised training of each task that has an embedded policy."""


def warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    recipe: WarmStart,
    *,
    seed: int,
    progress: Progress | None = None,
) -> None:
    """Minimise −Σ_k q_k log π_k over answer tokens, where q are the smoothed targets.

    Trains `model` in place on the CPU, on one thread whatever torch's setting is: the same seed and
    versions give the same weights to the bit. The global random state is not read.

    Args:
        model: a causal LM.
        tokenizer: one token a character; the ten digits in a row.
        problems: the training data; an answer ends with the EOS token, which is not smoothed.
        recipe: the settings.
        seed: of the order of the problems.
        progress: called after each step.
    """
    tokens, targets = _table(tokenizer, problems)
    smoothed = _smoothed(tokenizer, model.config.vocab_size, recipe.smoothing)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    model.train()
    with _one_thread():
        for step in range(recipe.steps):
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * _schedule(step, recipe.steps)
            rows = torch.randint(len(problems), (recipe.batch_size,), generator=generator)
            target = targets[rows]
            logits = model(input_ids=tokens[rows], use_cache=False).logits
            loss = functional.cross_entropy(logits[target >= 0], smoothed[target[target >= 0]])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if progress is not None:
                progress(step + 1, recipe.steps, loss.item())
    model.eval()


def _table(
    tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem]
) -> tuple[Tensor, Tensor]:
    """Tokens [P, T], and the answer token that follows each of them [P, T]; −1 = none."""
    rows, following = [], []
    for problem in problems:
        prompt = tokenizer(problem.prompt).input_ids
        answer = [*tokenizer(problem.answer).input_ids, tokenizer.eos_token_id]
        rows.append(torch.tensor(prompt + answer[:-1]))
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


def _schedule(step: int, steps: int) -> float:
    """The learning rate, relative to its peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / 10) * max(0.05, cosine)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
