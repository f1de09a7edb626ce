"""Whether planted tokens grow: short runs whose sampler plants tokens into right responses."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rlobj
from benchmarks.rollouts import QUIET
from benchmarks.stability.conditions import BASE, objective
from benchmarks.stability.mechanism.batches import (
    MARK,
    TASK,
    Policy,
    changed,
    digits_of_sums,
    is_right,
    numbers,
    score,
)
from rlobj import CustomRule, Objective
from rlobj.config.layers import PROFILES, flattened
from rlobj.data.tasks import derivation
from rlobj.samplers import Sample, SamplingSettings, TransformersSampler

PERFECT = "perfect rule"
"""The base without the tokens that the judge of the task calls spurious."""
STEPS, RATE = 20, 5e-4
PROBED = 64


@dataclass(frozen=True)
class Spurious(CustomRule):
    """The tokens that the judge of the task calls spurious."""

    def select(self, frame: Any) -> Tensor:
        """The rule's tokens, bool [N]."""
        return frame.table.columns["spurious"] == 1


class Planting(TransformersSampler):
    """Samples from the policy, and plants tokens into responses that are right.

    A response with a planted token keeps its answer. Its log-probabilities are those of the policy
    for the text with the planted token, as those of a real sampler would be.

    Args:
        policy: the policy in training.
        rate: planted tokens for each sampled token.
        seed: of the places and of the tokens.

    Attributes:
        planted: number of planted tokens up to now.
        sampled: number of sampled tokens up to now.
    """

    def __init__(self, policy: Policy, rate: float, seed: int) -> None:
        super().__init__(policy.model, policy.tokenizer)
        self.planted = self.sampled = 0
        self._policy, self._rate, self._draw = policy, rate, random.Random(seed)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        count: int,
        settings: SamplingSettings,
        seeds: Sequence[int],
        done: Any = None,
    ) -> list[list[Sample]]:
        groups = super().sample(prompts, count=count, settings=settings, seeds=seeds)
        texts = ["".join(self._policy.texts(list(prompt))) for prompt in prompts]
        able = [
            (i, j)
            for i, group in enumerate(groups)
            for j, sample in enumerate(group)
            if is_right(texts[i], sample.text)
            and sample.finish == "stop"
            and digits_of_sums(sample.text.rpartition(MARK)[0])
            and len(sample.tokens) < settings.max_tokens
        ]
        self.sampled += sum(len(sample.tokens) for group in groups for sample in group)
        owed = min(round(self._rate * self.sampled) - self.planted, len(able))
        chosen = self._draw.sample(able, owed)
        if chosen:
            self._plant(groups, chosen)
        return groups

    def _plant(self, groups: list[list[Sample]], chosen: Sequence[tuple[int, int]]) -> None:
        end, rows = self._policy.tokenizer.eos_token_id, []
        for i, j in chosen:
            letter = self.planted % 2 == 1
            text, _ = changed(groups[i][j].text, self._draw, letter)
            rows.append((groups[i][j].prompt_ids, [*self._policy.ids(text), end], text))
            self.planted += 1
        logprobs = score(self._policy, [(prompt, ids) for prompt, ids, _ in rows])["logprobs"]
        parts = logprobs.split([len(ids) for _, ids, _ in rows])
        for (i, j), (prompt, ids, text), part in zip(chosen, rows, parts, strict=True):
            old = groups[i][j]
            groups[i][j] = Sample(prompt, ids, part.tolist(), text, old.finish, old.weight_version)


@torch.no_grad()
def mass(policy: Policy) -> dict[str, float]:
    """The policy's probability of spurious tokens on valid derivations of held-out problems.

    Returns:
        letters: mean probability of all letters, over the tokens of the steps.
        digits: mean probability of all wrong digits, over the digits of sums.
    """
    letters, digits = [], []
    names = policy.tokenizer.get_vocab()
    alphabet = [i for name, i in names.items() if len(name) == 1 and name.isalpha()]
    figures = [i for name, i in names.items() if len(name) == 1 and name.isdigit()]
    for problem in TASK.problems("test")[:PROBED]:
        text = derivation(numbers(problem.prompt))
        prompt, response = policy.ids(problem.prompt), policy.ids(text)
        logits = policy.model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
        probs = logits[len(prompt) - 1 : -1].double().softmax(-1)
        steps = text.rpartition(MARK)[0]
        letters.append(probs[: len(steps), alphabet].sum(-1))
        places = digits_of_sums(steps)
        right = torch.tensor([response[place] for place in places])
        digits.append(probs[places][:, figures].sum(-1) - probs[places, right])
    both = {"letters": letters, "digits": digits}
    return {name: float(torch.cat(each).mean()) for name, each in both.items()}


def objective_of(condition: str) -> Objective:
    """The objective of a condition of the study, or the rule that knows the judge's verdicts."""
    if condition == PERFECT:
        return objective(BASE).replace(drop=Spurious())
    return objective(condition)


def grown(
    condition: str, rate: float, seed: int, steps: int = STEPS, kind: str = "prepared"
) -> dict[str, Any]:
    """A short run with planted tokens, and what it did to the policy.

    Returns:
        condition, rate, seed: as given.
        planted: planted tokens for each sampled token.
        letters, digits: `mass` after the run divided by `mass` before it.
        accuracy: of the samples in the last five steps.
        spurious: share of spurious tokens in the first and the last five steps, planted ones
            included.
        dropped: share of the judged tokens that the objective dropped.
    """
    policy = Policy.load(kind)
    before = mass(policy)
    settings = {
        **flattened(PROFILES["scratchpad"]),
        "data.template": "{prompt}",
        "seed": seed,
        "sampling.prompts_per_step": 16,
        "training.steps": steps,
        "training.warmup_steps": 0,
        "training.updates_per_step": 4,
        "training.learning_rate": RATE,
        "checkpoint.best": False,
        "output.records_mb": 0,
        **QUIET,
    }
    sampler = Planting(policy, rate, seed)
    with tempfile.TemporaryDirectory() as folder:
        result = rlobj.train(
            objective_of(condition),
            model=policy.model,
            tokenizer=policy.tokenizer,
            sampler=sampler,
            settings=settings,
            out=Path(folder) / "run",
        )
    after, lines = mass(policy), [line for line in result.history if line["step"] > 0]
    judged = sum(line.get("spurious/dropped", 0) for line in lines)
    tokens = sum(line["tokens/step"] for line in lines)
    return {
        "condition": condition,
        "rate": rate,
        "seed": seed,
        "planted": sampler.planted / sampler.sampled,
        **{name: after[name] / before[name] for name in after},
        "accuracy": _mean(lines[-5:], "reward/accuracy"),
        "spurious": [_mean(lines[:5], "spurious/share"), _mean(lines[-5:], "spurious/share")],
        "dropped": judged / tokens,
    }


def _mean(lines: Sequence[dict[str, Any]], name: str) -> float:
    return sum(line.get(name) or 0.0 for line in lines) / len(lines)
