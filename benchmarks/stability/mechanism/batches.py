"""Policies, and rollouts with tokens planted at known places.

A rollout is sampled from the policy and graded. Then the right responses are made valid, so that no
spurious token is left in them, and tokens are planted into some of them: a wrong digit in place of
the digit of a sum, or a letter before a character. The answer stays right, so that the planted
tokens get a positive advantage. Wrong responses are not changed. At last everything is scored
again: probabilities are those of the text that is there.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rlobj import TokenBatch
from rlobj.data.tasks import MARK, TASKS, derivation
from rlobj.models.embedded import RECIPES, embedded_policy, warm_start
from rlobj.samplers import SamplingSettings, TransformersSampler, derive_seed
from rlobj.scoring import PolicyScorer, score_samples

TASK = TASKS["scratchpad"]
MAX_TOKENS = 40
MIN_P = 0.02
"""Of Lp-Reg's proxy."""
POLICIES = ("prepared", "sharp")


@dataclass(frozen=True)
class Policy:
    """The embedded policy of `scratchpad`: its model, tokenizer and scorer."""

    model: Any
    tokenizer: Any
    scorer: PolicyScorer

    @classmethod
    def load(cls, kind: str, dtype: torch.dtype = torch.float32) -> Policy:
        """A new copy of a policy.

        Args:
            kind: "prepared", the policy that every run starts from; or "sharp", the same after 80
                supervised steps on responses with a tenth of the noise. A planted token is less
                likely for it, as for a large model.
            dtype: of the weights.
        """
        model, tokenizer = _prepared()
        if kind == "sharp":
            model.load_state_dict(_sharp_weights())
        model = model.eval().to(dtype)
        return cls(model, tokenizer, PolicyScorer(model))

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, one for each character."""
        return self.tokenizer(text).input_ids

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; empty for the end of the response."""
        return [self.tokenizer.decode([i], skip_special_tokens=True) for i in ids]


def _prepared() -> tuple[Any, Any]:
    """The model and the tokenizer of the embedded policy."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlobj.models.loading import no_bars

    folder = embedded_policy("scratchpad")
    with no_bars():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


@cache
def _sharp_weights() -> dict[str, Tensor]:
    model, tokenizer = _prepared()
    recipe = replace(RECIPES["scratchpad"], steps=80, wrong_digits=0.003, stray_letters=0.0004)
    warm_start(model, tokenizer, TASK.demonstrations(), recipe, seed=1)
    return model.state_dict()


@dataclass(frozen=True)
class Rollout:
    """Graded responses.

    Attributes:
        prompts: text of each response's prompt.
        responses: text of each response, without the end.
        ended: whether the end token follows, for each response.
        groups: number of the prompt's group, [B].
        rewards: 1 for a right answer, else 0, [B].
        planted: for each response, the places of its planted tokens.
    """

    prompts: list[str]
    responses: list[str]
    ended: list[bool]
    groups: list[int]
    rewards: list[float]
    planted: list[tuple[int, ...]]

    def sequences(self, policy: Policy) -> list[tuple[list[int], list[int]]]:
        """Prompt ids and response ids of each response."""
        end = policy.tokenizer.eos_token_id
        return [
            (policy.ids(prompt), [*policy.ids(text), *([end] if ended else [])])
            for prompt, text, ended in zip(self.prompts, self.responses, self.ended, strict=True)
        ]

    @property
    def tokens(self) -> int:
        """Number of response tokens."""
        return sum(map(len, self.responses)) + sum(self.ended)

    @property
    def able(self) -> list[int]:
        """The right responses of groups with a wrong one, which have a positive advantage."""
        rows = list(zip(self.rewards, self.groups, strict=True))
        live = {group for reward, group in rows if reward == 0}
        return [i for i, (reward, group) in enumerate(rows) if reward == 1 and group in live]

    @property
    def marks(self) -> Tensor:
        """1 for planted tokens, else 0, [N]."""
        rows = zip(self.responses, self.ended, self.planted, strict=True)
        marks = [i in places for text, ended, places in rows for i in range(len(text) + ended)]
        return torch.tensor(marks, dtype=torch.float64)


def is_right(prompt: str, response: str) -> bool:
    """Whether the text after the last # is the sum."""
    return response.rpartition(MARK)[2] == str(sum(numbers(prompt)))


def numbers(prompt: str) -> list[int]:
    """The numbers of a problem such as `3+4+8+5=`."""
    return [int(number) for number in prompt.removesuffix("=").split("+")]


def roll_out(
    policy: Policy, seed: int, prompts: int = 64, size: int = 8, mend: bool = True
) -> Rollout:
    """Sample, grade, and make the right responses valid.

    Args:
        policy: samples at temperature 1.
        seed: of the problems and of the samples.
        prompts: number of groups.
        size: responses of a group.
        mend: make them valid; else they stay as sampled.
    """
    chosen = random.Random(seed).sample(TASK.problems("train"), prompts)
    groups = TransformersSampler(policy.model, policy.tokenizer).sample(
        [policy.ids(problem.prompt) for problem in chosen],
        count=size,
        settings=SamplingSettings(max_tokens=MAX_TOKENS),
        seeds=[derive_seed("mechanism", seed, i) for i in range(prompts)],
    )
    rows: list[Any] = []
    for i, (problem, samples) in enumerate(zip(chosen, groups, strict=True)):
        prompt = problem.prompt
        for sample in samples:
            right = is_right(prompt, sample.text)
            mended = right and mend
            text = valid(prompt, sample.text) if mended else sample.text
            rows.append((prompt, text, mended or sample.finish == "stop", i, float(right), ()))
    return Rollout(*map(list, zip(*rows, strict=True)))


def valid(prompt: str, response: str) -> str:
    """The response if it is a valid derivation, else the one from left to right."""
    assert TASK.judge is not None
    spurious = any(TASK.judge(prompt, [*response, ""]))
    return derivation(numbers(prompt)) if spurious else response


def sampled(policy: Policy, seed: int) -> Rollout:
    """A rollout as the policy samples it; the judge's spurious tokens stand in `planted`.

    Only right responses of groups with a wrong one are judged: these have a positive advantage.
    """
    assert TASK.judge is not None
    rollout = roll_out(policy, seed, mend=False)
    found = list(rollout.planted)
    for i in rollout.able:
        tokens = [*rollout.responses[i], *([""] if rollout.ended[i] else [])]
        marks = TASK.judge(rollout.prompts[i], tokens)
        found[i] = tuple(place for place, mark in enumerate(marks) if mark)
    return replace(rollout, planted=found)


def plant(rollout: Rollout, rate: float, seed: int) -> Rollout:
    """Plant tokens: at most one in a response, half of them digits and half of them letters.

    Args:
        rollout: without planted tokens.
        rate: planted tokens for each token of the rollout.
        seed: of the places and of the tokens.

    Raises:
        ValueError: there are fewer right responses with an advantage than tokens to plant.
    """
    draw = random.Random(seed)
    count, able = round(rate * rollout.tokens), rollout.able
    if count > len(able):
        raise ValueError(
            f"{count} tokens cannot be planted into {len(able)} right responses with an advantage, "
            "one in each; expected a lower rate or a larger rollout"
        )
    responses, planted = list(rollout.responses), list(rollout.planted)
    for number, i in enumerate(draw.sample(able, count)):
        responses[i], place = changed(responses[i], draw, letter=number % 2 == 1)
        planted[i] = (place,)
    return replace(rollout, responses=responses, planted=planted)


def changed(response: str, draw: random.Random, letter: bool) -> tuple[str, int]:
    """A valid response with one planted token, and the place of this token.

    Args:
        response: ends with its answer.
        draw: chooses the place and the token.
        letter: put a letter before a character; else replace a digit of a sum.

    Example:
        >>> changed("3+4=7;7+8=15#15", random.Random(0), letter=False)
        ('3+4=7;7+8=14#15', 11)
    """
    steps = response.rpartition(MARK)[0]
    if letter:
        place = draw.randrange(len(steps))
        return response[:place] + draw.choice(string.ascii_lowercase) + response[place:], place
    place = draw.choice(digits_of_sums(steps))
    other = draw.choice(string.digits.replace(response[place], ""))
    return response[:place] + other + response[place + 1 :], place


def digits_of_sums(steps: str) -> list[int]:
    """The places of digits between `=` and the end of a step."""
    sums = re.finditer(r"=(\d+)", steps)
    return [place for each in sums for place in range(each.start(1), each.end(1))]


def score(policy: Policy, sequences: Any, grad: bool = False) -> dict[str, Tensor]:
    """The columns of a table that the policy computes; with `grad` through log π and H."""
    with torch.set_grad_enabled(grad):
        scores = score_samples(
            policy.scorer, sequences, entropy=True, collision=True, sensitivity=True, min_p=MIN_P
        )
    return {name: column for name, column in vars(scores).items() if column is not None}


def table_of(policy: Policy, rollout: Rollout) -> TokenBatch:
    """The rollout as one table of an on-policy update; the column `planted` is 1 or 0."""
    columns: dict[str, Any] = score(policy, rollout.sequences(policy))
    old = columns["logprobs"]
    lengths = [
        len(text) + ended for text, ended in zip(rollout.responses, rollout.ended, strict=True)
    ]
    return TokenBatch(
        lengths=torch.tensor(lengths),
        groups=torch.tensor(rollout.groups),
        ids=torch.arange(len(lengths)),
        rewards=torch.tensor(rollout.rewards, dtype=old.dtype),
        **columns,
        old_logprobs=old,
        old_entropy=columns["entropy"],
        ref_logprobs=old,
        sampler_logprobs=old,
        columns={"planted": rollout.marks.to(old.dtype)},
    )
