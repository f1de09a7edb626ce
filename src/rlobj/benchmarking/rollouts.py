"""Random policies, random rollouts, and the trainer's updates on them: what is measured of a step.

No response is sampled, graded or written, so that nothing else is in the numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch

from rlobj.config.presets import load_preset
from rlobj.config.run_config import RunConfig, build_config
from rlobj.data import Problem
from rlobj.models.policy import Policy
from rlobj.rewards import Graded
from rlobj.samplers import Sample
from rlobj.scoring import PolicyScorer
from rlobj.training.loop import setup
from rlobj.training.loop.clock import Clock
from rlobj.training.loop.learner import Learner
from rlobj.training.loop.step import train_on
from rlobj.training.rollouts.collector import Response, Rollout

__all__ = [
    "PROMPT",
    "RolloutTrainer",
    "configure",
    "lognormal_lengths",
    "make_policy",
    "make_rollout",
    "measured",
    "share_of_rank",
]

PROMPT = 16
"""Tokens of each prompt."""


def make_policy(vocabulary: int, *, width: int = 128, layers: int = 2, context: int = 4096) -> Any:
    """A Qwen3 of random weights with tied embeddings, the same each time.

    Args:
        vocabulary: V.
        width: H, a multiple of 32, the size of an attention head; the MLP is twice as wide.
        layers: how many.
        context: tokens that it can read.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=max(width // 64, 1),
        head_dim=32,
        intermediate_size=2 * width,
        max_position_embeddings=context,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config)


def lognormal_lengths(count: int, median: int, sigma: float, seed: int = 1) -> list[int]:
    """Response lengths in tokens, cut at 16 times the median.

    Args:
        count: of responses.
        median: length in tokens.
        sigma: of the lengths' logarithm; 0 = all equal.
        seed: of the draw.
    """
    normal = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    drawn = (math.log(median) + sigma * normal).exp()
    return drawn.round().clamp(1, 16 * median).long().tolist()


def make_rollout(
    lengths: Sequence[int], *, group: int, vocabulary: int, dead: float = 0.0
) -> Rollout:
    """Responses of random tokens, as a sampler of even chances would draw them.

    Args:
        lengths: of the responses, in tokens; group after group.
        group: responses to a prompt; their rewards are 0 and 1 in turn.
        vocabulary: V.
        dead: share of groups with equal rewards, spread evenly over all groups.
    """
    generator = torch.Generator().manual_seed(2)
    responses = []
    for i, length in enumerate(lengths):
        index, place = divmod(i, group)
        equal = int((index + 1) * dead + 1e-9) > int(index * dead + 1e-9)
        ids = torch.randint(vocabulary, (PROMPT + length,), generator=generator).tolist()
        chances = [-math.log(vocabulary)] * length
        reward = 1.0 if equal else float(place % 2)
        responses.append(
            Response(
                i,
                index,
                Problem(id=str(index), prompt="", answer=""),
                Sample(ids[:PROMPT], ids[PROMPT:], chances, "", "stop", 0),
                Graded(reward, reward == 1.0, "", None),
                reward,
            )
        )
    return Rollout(responses, [], 1, {}, {})


def share_of_rank(rollout: Rollout, rank: int, ranks: int) -> Rollout:
    """The groups of a rollout that a rank would have sampled: every so many."""
    mine = [r for r in rollout.responses if r.group % ranks == rank]
    return Rollout(mine, [], 1, {}, {})


def configure(preset: str, **training: Any) -> RunConfig:
    """A preset with one update a rollout, without evaluation and tables.

    Weights all but stay, so that every update is the same, and samples need not be the policy's.

    Args:
        preset: its name.
        **training: settings of `training`.
    """
    settings = {"updates_per_step": 1, "learning_rate": 1e-12, "warmup_steps": 0, **training}
    mine = {
        "data": {"source": "max-digits"},
        "rewards": {"kind": "exact"},
        "sampling": {"max_logprob_gap": 1e9},
        "training": settings,
        "evaluation": {"every": 0},
        "output": {"samples_every": 0, "tokens_every": 0},
    }
    return build_config([("preset", load_preset(preset).config), ("benchmark", mine)])


class RolloutTrainer:
    """The trainer's updates on rollouts that it is given: no sampler, no problems, no files.

    Args:
        config: the run.
        model: the policy.
        scorer: makes the policy's scorer.
        learner: the learner's class.
    """

    def __init__(
        self,
        config: RunConfig,
        model: Any,
        scorer: Callable[[Any], PolicyScorer] = PolicyScorer,
        learner: type[Learner] = Learner,
    ) -> None:
        self._open = (config, model, scorer, learner)

    def __enter__(self) -> Self:
        config, model, scorer, learner = self._open
        self._parallel, autocast = setup.hardware(config)
        self.comm = self._parallel.comm
        policy = Policy(model.train(), None, "", False, "", "")
        if config.training.gradient_checkpointing:
            policy.recompute_activations()
        clock = Clock(None, self._parallel.device, time.process_time)
        objective = config.resolved_objective()
        self.learner = learner(
            config, objective, self._parallel, scorer(model), None, autocast, clock
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._parallel.close()

    def train(self, rollout: Rollout) -> dict[str, float]:
        """The updates on one rollout, all ranks together; the step's metrics, times in CPU s."""
        self.learner.clock.restart()
        metrics = train_on(self.learner, rollout)
        metrics |= self.learner.tally.metrics(self.comm)
        return {**metrics, **self.learner.clock.stop(0)}


def measured(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process, and what the work gives back."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result
