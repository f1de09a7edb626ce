"""The work that `trainer` gives to two trainers: a policy, problems, a reward and sizes.

Two kinds of policy, both plain model folders that any trainer loads by name:

    learning   the embedded policy after its warm start on addition: does the reward rise alike?
    timing     a random GPT-2 that ends a response at a length drawn from a distribution of ours

GPT-2 learns a vector for each position. In the timing policy the first component of the residual
stream belongs to that vector alone, and the head reads it for the end-of-text token alone: the
chance to end at each position is thereby written into the weights. Responses come out with the
lengths that were asked for, without any hook, on every trainer alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Asked", "Lengths", "Shape", "Work", "build_policy", "even_share", "exact_answer"]

PAD, EOS = 0, 1
PROMPT = 16
"""Tokens of a timing prompt."""
EQUAL = 64
"""Tokens of every response at equal lengths."""
MEDIAN, SIGMA, CUT = 64.0, 0.8, 12
"""Skewed lengths: lognormal, cut at so many times the median."""
BETAS = (0.9, 0.95)
"""AdamW's; no weight decay, gradients clipped to norm 1."""
CLIP = (0.2, 0.28)
"""The ratio's bounds; it is 1, since there is one update per rollout."""
EPSILON = 1e-4
"""Added to a group's standard deviation of rewards."""
NEVER = -24.0
"""The end-of-text token's logit where a response must not end."""


@dataclass(frozen=True)
class Shape:
    """The timing policy: layers L, width H, heads and vocabulary V."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    vocabulary: int = 2048


@dataclass(frozen=True)
class Lengths:
    """Response lengths in tokens: lognormal, cut at `longest`; without a median all are longest."""

    longest: int
    median: float | None = None
    sigma: float = 0.8

    def hazard(self, length: int) -> float:
        """P(a response that has `length` tokens ends there)."""
        if self.median is None:
            return 0.0
        before = self._reached(length - 0.5) if length > 1 else 1.0
        return 1.0 - self._reached(length + 0.5) / before

    def _reached(self, length: float) -> float:
        assert self.median is not None
        return 0.5 * math.erfc(math.log(length / self.median) / (self.sigma * math.sqrt(2)))


@dataclass(frozen=True)
class Work:
    """What a trainer is given.

    Attributes:
        policy: model folder, with tokenizer.
        problems: JSON lines with `prompt` and `answer`.
        reward: `module:function`, from (response, answer) to a number.
        prompts: per step.
        group: responses per prompt.
        max_tokens: of a response.
        learning_rate: of AdamW, constant.
    """

    policy: str
    problems: str
    reward: str
    prompts: int
    group: int
    max_tokens: int
    learning_rate: float

    @property
    def samples(self) -> int:
        """Responses per step."""
        return self.prompts * self.group


def exact_answer(response: str, answer: str, **_: Any) -> float:
    """1 for the answer and nothing else, blanks around it aside."""
    return float(response.strip() == answer)


def even_share(response: str, answer: str, **_: Any) -> float:
    """The share of even numbers in a text of numbers: no two responses of a group are worth the
    same, so that no trainer has anything to leave out."""
    numbers = response.split()
    return sum(not int(number) % 2 for number in numbers) / max(len(numbers), 1)


@dataclass(frozen=True)
class Asked:
    """A question that one of the two trainers answers in a process of its own.

    Attributes:
        work: learning, equal or skewed.
        steps: rollouts, one optimizer update each.
        micro_batch: what a forward pass of the update holds: tokens of ours, responses of TRL's.
        seeds: a run each.
        median: of skewed lengths, in tokens.
        shape: of the timing policy.
    """

    work: str
    steps: int
    micro_batch: int
    seeds: tuple[int, ...] = (0,)
    median: float = MEDIAN
    shape: Shape = Shape()

    @classmethod
    def parse(cls, question: str) -> Asked:
        """From JSON."""
        facts = json.loads(question)
        shape, seeds = Shape(**facts["shape"]), tuple(facts["seeds"])
        return cls(**{**facts, "shape": shape, "seeds": seeds})

    @property
    def lengths(self) -> Lengths:
        """Of the timing policy's responses."""
        if self.work == "equal":
            return Lengths(EQUAL)
        return Lengths(round(CUT * self.median), self.median, SIGMA)

    def prepare(self, folder: Path) -> Work:
        """Write policy and problems into a folder: the same files for whoever asks."""
        return _learning(folder) if self.work == "learning" else _timing(folder, self)


def _learning(folder: Path) -> Work:
    """Addition with the embedded policy: 32 prompts x 8 responses of two or three tokens."""
    from rlobj.data.tasks import TASKS
    from rlobj.models.embedded import embedded_policy

    problems = [(each.prompt, each.answer) for each in TASKS["addition"].problems("train")]
    return Work(
        policy=str(embedded_policy("addition")),
        problems=_written(folder / "problems.jsonl", problems),
        reward=f"{__name__}:exact_answer",
        prompts=32,
        group=8,
        max_tokens=5,
        learning_rate=3e-4,
    )


def _timing(folder: Path, asked: Asked) -> Work:
    """The timing policy: 8 prompts of 16 tokens x 8 responses, hardly moved by training."""
    import torch

    lengths, draws = asked.lengths, torch.Generator().manual_seed(0)
    numbers = torch.randint(2, asked.shape.vocabulary, (64, PROMPT), generator=draws).tolist()
    build_policy(folder / "policy", asked.shape, lengths, PROMPT)
    return Work(
        policy=str(folder / "policy"),
        problems=_written(
            folder / "problems.jsonl", [(" ".join(map(str, each)), "even") for each in numbers]
        ),
        reward=f"{__name__}:even_share",
        prompts=8,
        group=8,
        max_tokens=lengths.longest,
        learning_rate=1e-6,
    )


def _written(path: Path, problems: list[tuple[str, str]]) -> str:
    lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in problems]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def build_policy(folder: Path, shape: Shape, lengths: Lengths, prompt: int) -> None:
    """Write the timing policy for prompts of `prompt` tokens."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    positions = prompt + lengths.longest
    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=positions,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=EOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model: Any = GPT2LMHeadModel(config)
        model.transformer.wte.weight.copy_(_unit_vectors(shape))
        for block in model.transformer.h:
            for writer in (block.attn.c_proj, block.mlp.c_proj):
                writer.weight[:, :3] = 0.0
        head = model.lm_head.weight
        head[:, :3] = head[[PAD, EOS]] = 0.0
        head[PAD, 1] = NEVER  # no response has it
        head[EOS, 0] = -NEVER / 3
        places = [_component(lengths, place - prompt + 2, shape) for place in range(positions)]
        model.transformer.wpe.weight.zero_()
        model.transformer.wpe.weight[:, 0] = torch.tensor(places)
    _quietly(lambda: model.save_pretrained(folder))
    _tokenizer(shape.vocabulary, positions).save_pretrained(folder)


def _unit_vectors(shape: Shape) -> Any:
    """Token vectors [V, H] of mean 0 and mean square 1, but for their first component, which is 0.

    The next two are 1 and −1 in all of them: a constant that the head can read.
    """
    import torch

    vectors = torch.randn(shape.vocabulary, shape.width)
    vectors[:, :3] = torch.tensor([0.0, 1.0, -1.0])
    rest = vectors[:, 3:]
    rest -= rest.mean(1, keepdim=True)
    rest *= ((shape.width - 3) / rest.square().sum(1, keepdim=True)).sqrt()
    return vectors


def _component(lengths: Lengths, length: int, shape: Shape) -> float:
    """What a position's vector holds where the next token would be the response's `length`-th.

    After the last layer norm it is the end-of-text logit over its weight in the head. The norm
    divides by the standard deviation of the stream: of the tokens' unit vectors and of this.
    """
    chance = lengths.hazard(length) if length > 0 else 0.0
    logit = NEVER
    if chance > 0:
        logit = max(math.log(chance / (1 - chance)) + math.log(shape.vocabulary - 1), NEVER)
    value = logit / (-NEVER / 3)
    return value / math.sqrt(1 - (1 + value * value) / shape.width)


def _tokenizer(vocabulary: int, longest: int) -> Any:
    """Token k is the number k in decimal, with blanks between."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {"<pad>": PAD, "<eos>": EOS} | {str(number): number for number in range(2, vocabulary)}
    numbers = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    numbers.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=numbers,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<pad>",
        padding_side="left",
        model_max_length=longest,
    )


def _quietly(save: Callable[[], None]) -> None:
    """Without transformers' progress bar for one small file."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        save()
    finally:
        if shown:
            logging.enable_progress_bar()
