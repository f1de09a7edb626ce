"""The work that `trainer` gives to two trainers: a policy, problems, a reward and sizes.

    learning        the embedded policy after its warm start, on addition
    equal, skewed   a random GPT-2 that ends a response at a length drawn from a given distribution
    chat            the GPT-2 of `equal`, with prompts longer than responses
    real-6, real-60, real-120
                    SmolLM2 with sums, and at most so many tokens a response

GPT-2 learns a vector for each position. In the random policy the first component of the residual
stream belongs to that vector alone, and the head reads it for the end-of-text token alone: so the
probability to end at each position is written into the weights, and responses have the wanted
lengths on every trainer, without any hook.
"""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.real_model import real_model

PAD, EOS = 0, 1
PROMPTS = {"equal": 16, "skewed": 16, "chat": 96}
"""Tokens of a timing prompt."""
EQUAL = {"equal": 64, "chat": 16}
"""Tokens of every response at equal lengths."""
SIGMA, CUT = 0.8, 12
"""Skewed lengths are lognormal, cut at so many times the median."""
LAYERS, WIDTH, HEADS, VOCABULARY = 2, 128, 4, 2048
"""Of the timing policy."""
NEVER = -24.0
"""The logit of a token that must not be drawn."""
REAL = {"real-6": (8, 6), "real-60": (2, 60), "real-120": (2, 120)}
"""Prompts of a step, and the longest response in tokens, with SmolLM2."""
EXAMPLES = "3 + 14 = 17\n25 + 36 = 61\n"
"""Before each of its sums: it answers few sums without examples."""


@dataclass(frozen=True)
class Work:
    """What both trainers are given.

    Attributes:
        policy: model folder, with tokenizer; a chat template in it is not used.
        problems: JSON lines with `prompt` and `answer`.
        reward: `module:function`, from (response, answer) to a number.
        prompts: prompts per step.
        group: responses per prompt.
        max_tokens: longest response.
        learning_rate: of AdamW, constant.
    """

    policy: str
    problems: str
    reward: str
    prompts: int
    group: int
    max_tokens: int
    learning_rate: float


def exact_answer(response: str, answer: str, **_: Any) -> float:
    """1 for the answer and nothing else, apart from blanks around it."""
    return float(response.strip() == answer)


def even_share(response: str, answer: str, **_: Any) -> float:
    """The share of even numbers in a response of numbers: hardly two are equal in a group, so
    neither trainer has a group without a signal to leave out."""
    numbers = response.split()
    return sum(not int(number) % 2 for number in numbers) / max(len(numbers), 1)


def right_sum(response: str, answer: str, **_: Any) -> float:
    """1 if the first whole number after a blank is the answer."""
    number = re.search(r"\s(\d+)", response)
    return float(number is not None and number[1] == answer)


def prepare(work: str, median: float, folder: Path) -> Work:
    """Write the policy and the problems of a work into a folder, the same for both trainers."""
    if work == "learning":
        from rlobj.data.tasks import TASKS
        from rlobj.models.embedded import embedded_policy

        problems = [(each.prompt, each.answer) for each in TASKS["addition"].problems("train")]
        file = _write(folder, problems)
        reward = f"{__name__}:exact_answer"
        return Work(str(embedded_policy("addition")), file, reward, 32, 8, 5, 3e-4)
    if work in REAL:
        draw, problems = random.Random(0), []
        for _ in range(256):
            one, other = draw.randint(10, 99), draw.randint(10, 99)
            problems.append((f"{EXAMPLES}{one} + {other} =", str(one + other)))
        prompts, longest = REAL[work]
        reward = f"{__name__}:right_sum"
        return Work(str(real_model()), _write(folder, problems), reward, prompts, 8, longest, 1e-5)
    prompt, longest = PROMPTS[work], EQUAL.get(work) or round(CUT * median)
    draws = torch.Generator().manual_seed(0)
    numbers = torch.randint(2, VOCABULARY, (64, prompt), generator=draws).tolist()
    file = _write(folder, [(" ".join(map(str, each)), "2") for each in numbers])
    build_policy(folder / "policy", prompt, longest, None if work in EQUAL else median)
    reward = f"{__name__}:even_share"
    return Work(str(folder / "policy"), file, reward, 8, 8, longest, 1e-6)


def _write(folder: Path, problems: list[tuple[str, str]]) -> str:
    lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in problems]
    path = folder / "problems.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def hazard(length: int, median: float | None) -> float:
    """P(a response that has `length` tokens ends there); 0 without a median."""
    if median is None or length < 1:
        return 0.0

    def reached(x: float) -> float:
        return 0.5 * math.erfc(math.log(x / median) / (SIGMA * math.sqrt(2)))

    return 1.0 - reached(length + 0.5) / (reached(length - 0.5) if length > 1 else 1.0)


def build_policy(folder: Path, prompt: int, longest: int, median: float | None) -> None:
    """Write the timing policy and its tokenizer.

    Args:
        folder: to write.
        prompt: length of the prompts, in tokens.
        longest: response, in tokens.
        median: of lognormal lengths; None: no response ends before `longest`.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    positions = prompt + longest
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=positions,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
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
        model.transformer.wte.weight.copy_(_token_vectors())
        for block in model.transformer.h:
            for writer in (block.attn.c_proj, block.mlp.c_proj):
                writer.weight[:, :3] = 0.0
        head = model.lm_head.weight
        head[:, :3] = head[[PAD, EOS]] = 0.0
        head[PAD, 1] = NEVER
        head[EOS, 0] = -NEVER / 3
        values = [_component(hazard(place - prompt + 2, median)) for place in range(positions)]
        model.transformer.wpe.weight.zero_()
        model.transformer.wpe.weight[:, 0] = torch.tensor(values)
    model.save_pretrained(folder)
    _tokenizer(positions).save_pretrained(folder)


def _token_vectors() -> torch.Tensor:
    """Vectors [V, H] of mean 0 and mean square 1: 0, 1 and −1, then random components.

    The 1 and −1 are a constant that the head can read.
    """
    vectors = torch.randn(VOCABULARY, WIDTH)
    vectors[:, :3] = torch.tensor([0.0, 1.0, -1.0])
    rest = vectors[:, 3:]
    rest -= rest.mean(1, keepdim=True)
    rest *= ((WIDTH - 3) / rest.square().sum(1, keepdim=True)).sqrt()
    return vectors


def _component(chance: float) -> float:
    """The first component of a position's vector, for a probability to end there.

    After the last layer norm it is the end-of-text logit over its weight in the head. The norm
    divides by the standard deviation of the stream: of the token's vector and of this component.
    """
    logit = NEVER
    if chance > 0:
        logit = max(math.log(chance / (1 - chance)) + math.log(VOCABULARY - 1), NEVER)
    value = logit / (-NEVER / 3)
    return value / math.sqrt(1 - (1 + value * value) / WIDTH)


def _tokenizer(longest: int) -> Any:
    """Token k is the number k in decimal, with blanks between."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {"<pad>": PAD, "<eos>": EOS} | {str(number): number for number in range(2, VOCABULARY)}
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
