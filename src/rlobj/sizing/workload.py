"""The tokens and hours of a run, by arithmetic. None of these numbers is measured.

With P parameters that compute, n tokens of mean length l, L layers and queries of width Q, a
forward pass takes 2·P·n + 2·L·Q·l·n operations. A backward pass takes twice as many, and
recomputation one forward pass more. A decode step of vLLM reads the weights and the cache of
all its sequences: it takes the longer of the time to read them and the time to compute. One of
transformers takes `STEP`. Dynamic sampling counts with its first batch of prompts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlobj.settings.run_config import RunConfig
from rlobj.settings.scores import Lora
from rlobj.settings.scoring_pass import CURRENT, scored_columns
from rlobj.sizing.memory import Memory, evaluated, heard, longest, sampled, value_size
from rlobj.sizing.sizes import Cards, Size

USED = 0.3
"""Share of a GPU's peak that training reaches: 0.27 to 0.34 with a 1.7B model on an H200."""

DECODING = 0.5
"""Share of the memory bandwidth that vLLM reaches."""

FULL = 0.5
"""Mean length of a response as a share of `sampling.max_tokens`, and of what tools say as a share
of the most that they can say."""

PROMPT = 256
"""Mean tokens of a prompt."""

AT_ONCE = 256
"""The most sequences that vLLM decodes at the same time."""

STEP = 0.025
"""Seconds of a decode step of transformers: what its Python code takes at least."""

LINK = 50e9
"""Bytes a second between GPUs."""


@dataclass(frozen=True)
class Work:
    """What a run does.

    Attributes:
        responses: that a step samples, over all GPUs.
        mean: tokens of a response.
        prompt: tokens of a prompt, an assumption.
        tokens: that a step trains on, prompts and responses, with what tools say in them.
        seconds: of a step, by part; empty without GPUs.
        steps: of the run.
        beside: responses are generated on other GPUs while the policy is trained.
    """

    responses: int
    mean: float
    prompt: int
    tokens: float
    seconds: Mapping[str, float]
    steps: int
    beside: bool = False

    @property
    def step(self) -> float:
        """Seconds of a step: what takes longer, if the policy is trained beside generation."""
        generation = self.seconds.get("generation", 0.0)
        rest = sum(self.seconds.values()) - generation
        return max(generation, rest) if self.beside else generation + rest

    @property
    def hours(self) -> float:
        """Hours of the run."""
        return self.steps * self.step / 3600


def work(config: RunConfig, size: Size, memory: Memory, cards: Cards | None) -> Work:
    """The work of a run.

    Args:
        config: the run.
        size: of its model.
        memory: of a process.
        cards: the GPUs; None = there are none, and no hours.
    """
    sampling, training = config.sampling, config.training
    # Tokens of a prompt: `PROMPT`, or what the settings and the context leave.
    room = PROMPT if size.context is None else max(size.context - sampling.max_tokens, 1)
    prompt = min(PROMPT, config.data.max_prompt_tokens or PROMPT, room)
    mean = FULL * sampling.max_tokens
    length = prompt + mean + FULL * heard(config, size)
    trained = sampling.prompts_per_step * sampling.group_size
    made = Work(sampled(config), mean, prompt, trained * length, {}, training.steps)
    if cards is None:
        return made
    # A prompt is computed once for its group, but not with recomputation.
    shares = training.shared_prompts and training.gradient_checkpointing is not True
    rows = sampling.prompts_per_step if shares else trained
    computed = trained * length - (trained - rows) * prompt
    speed = cards.count * cards.speed.flops * USED
    forward = computed * _operations(size, length) / speed
    updates = training.passes * len(config.objective.phases)
    seconds = {
        "generation": _generation(config, size, memory, cards, sampled(config), mean),
        "scoring": forward * _scorings(config),
        "update": forward * _passes(config, config.model.lora) * updates,
        "new weights": 4 * size.total / LINK,
    }
    if (critic := config.critic) is not None:
        value = value_size(config, size)
        operations = _operations(value, length) - 2 * value.matrix  # but for the embedding
        passes = 1 + _passes(config, critic.lora) * critic.updates * updates
        seconds["value"] = computed * operations * passes / speed
    if drawn := evaluated(config):
        once = _generation(config, size, memory, cards, drawn, mean)
        seconds["evaluation"] = once / config.evaluation.every
    beside = sampling.ahead and sampling.engine == "vllm-server"
    return replace(made, seconds=seconds, beside=beside)


def _operations(size: Size, length: float) -> float:
    """Operations of a forward pass for a token, a tied head's too."""
    computing = size.total - (0 if size.tied else size.matrix)
    return 2 * computing + 2 * size.layers * size.queries * length


def _passes(config: RunConfig, lora: Lora | None) -> int:
    """How many forward passes an update takes as long as."""
    backward = 1 if lora is not None else 2  # adapters need no gradient of the weights
    return 1 + backward + (config.training.gradient_checkpointing is True)


def _scorings(config: RunConfig) -> float:
    """Forward passes over all tokens of a step that are not part of an update."""
    objective, training = config.objective, config.training
    updates = training.updates * len(objective.phases)
    scored = scored_columns(objective, training)
    passes = 1.0 if scored else 0.0
    current = {*CURRENT, "proxy_logprobs", *objective.divergences}
    if training.selection == "current" and scored & current:
        passes += (updates - 1) / training.updates_per_step
    return passes + len(objective.read_scores)


def _generation(
    config: RunConfig, size: Size, memory: Memory, cards: Cards, responses: int, mean: float
) -> float:
    """Seconds to sample responses.

    With vLLM, a GPU decodes its responses together, as many as its cache takes. The longest
    response sets the least number of decode steps. What tools say is computed once; nothing waits
    for them.
    """
    share = math.ceil(responses / cards.count)
    if config.sampling.engine == "transformers":
        at_once = max(config.sampling.batch_tokens // config.sampling.max_tokens, 1)
        return math.ceil(share / at_once) * config.sampling.max_tokens * STEP
    most, fitting = config.sampling.max_tokens, memory.sequences
    said = FULL * heard(config, size)
    room = AT_ONCE if fitting is None else fitting * longest(config, size) / (mean + said)
    together = max(1.0, min(share, room, AT_ONCE))
    cache = 4 * size.layers * size.keys * together * (mean + said) / 2
    reading = (2 * size.total + cache) / (cards.speed.bandwidth * DECODING)
    computing = 2 * size.total / (cards.speed.flops * DECODING)
    steps = max(share * mean / together, most)
    return steps * max(reading, computing * together) + share * said * computing
