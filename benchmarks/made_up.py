"""Training steps on made-up responses: a random policy, a sampler that draws random tokens.

The run is an ordinary `rlobj.train` with a given model and sampler. A callback measures the CPU
seconds and the peak memory from scoring to the last update.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

import rlobj
from benchmarks.embedded_policy import build_tokenizer
from benchmarks.harness import keep_freed_memory, peak_mib, return_freed_memory
from rlobj import TokenBatch, load_preset
from rlobj.runs.observed import ObservedUpdate
from rlobj.samplers import Received, Response, SamplingSettings
from rlobj.training import Callback

if TYPE_CHECKING:
    from rlobj.training import TrainingResult

PROMPT = 16
"""Tokens of each prompt."""
RIGHT, WRONG = "1", "0"
QUIET = dict.fromkeys(
    ("evaluation.every", "checkpoint.every", "output.samples_every", "output.tables_every"), 0
)
"""Settings of a run that evaluates nothing and writes no tables."""


def make_policy(vocabulary: int, width: int = 128, layers: int = 2) -> Any:
    """A Qwen3 of random weights with tied embeddings, the same each time.

    Args:
        vocabulary: V.
        width: H, a multiple of 32, the size of an attention head; the MLP is twice as wide.
        layers: number of layers.
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
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config)


def lognormal_lengths(count: int, median: int, sigma: float) -> list[int]:
    """Response lengths in tokens, at most 16 times the median; sigma 0: all equal."""
    normal = torch.randn(count, generator=torch.Generator().manual_seed(1))
    drawn = (math.log(median) + sigma * normal).exp()
    return drawn.round().clamp(1, 16 * median).long().tolist()


def made_up_update(
    number: int, lengths: Sequence[int], group: int, vocabulary: int
) -> ObservedUpdate:
    """An update with columns as a trained policy has them, planned under STAPO as a trainer does.

    Args:
        number: seeds the columns, and counts the responses before.
        lengths: of the responses, group after group.
        group: responses to a prompt.
        vocabulary: V.
    """
    objective = load_preset("stapo").objective
    generator = torch.Generator().manual_seed(number)
    size, tokens = len(lengths), sum(lengths)
    entropy = torch.empty(tokens).exponential_(3.0, generator=generator)
    logprobs = -entropy * torch.empty(tokens).exponential_(1.0, generator=generator)
    old = (logprobs + 0.02 * torch.randn(tokens, generator=generator)).clamp(max=0)
    probs = logprobs.exp()
    first = size * number
    table = TokenBatch(
        lengths=torch.tensor([*lengths]),
        groups=first + torch.arange(size) // group,
        ids=first + torch.arange(size),
        rewards=torch.randint(2, (size,), generator=generator).float(),
        logprobs=logprobs,
        old_logprobs=old,
        old_entropy=entropy * 1.01,
        entropy=entropy,
        collision=(probs**2 + (1 - probs) ** 2 / 10).clamp(max=1),
        entropy_sensitivity=torch.randn(tokens, generator=generator) * entropy,
        sampler_logprobs=(old + 0.001 * torch.randn(tokens, generator=generator)).clamp(max=0),
    )
    [table] = objective.with_advantages([table])
    plan = objective.plan([table], {}, clauses=True)
    words = (torch.rand(tokens, generator=generator) ** 4 * vocabulary).long().tolist()
    ends = torch.tensor([*lengths]).cumsum(0).tolist()
    sequences = [
        (list(range(32)), words[end - n : end]) for n, end in zip(lengths, ends, strict=True)
    ]
    names = ("logprobs", "entropy", "collision", "entropy_sensitivity")
    columns = [getattr(table, name) for name in names]
    return ObservedUpdate(objective, {}, table, plan, sequences, *columns)


class RandomSampler:
    """Draws random tokens, the same for a prompt at every step. Prompts are numbers.

    Args:
        lengths: of all responses in tokens, group after group.
        group: responses to a prompt; their rewards are 0 and 1 in turn.
        vocabulary: V.
        dead: share of the groups whose rewards are all 1, spread evenly.
    """

    dtype: torch.dtype | None = None
    same_tensors = False

    def __init__(self, lengths: Sequence[int], group: int, vocabulary: int, dead: float = 0.0):
        self.lengths, self.group, self.vocabulary = lengths, group, vocabulary
        self.dead, self.version = dead, -1
        self.tokenizer = build_tokenizer()

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        count: int,
        settings: SamplingSettings,
        seeds: Sequence[int],
        done: Any = None,
    ) -> list[list[Response]]:
        """The responses of each prompt."""
        return [self._group(list(prompt)) for prompt in prompts]

    def _group(self, prompt: list[int]) -> list[Response]:
        number = int(str(self.tokenizer.decode(prompt)))
        draws = torch.Generator().manual_seed(number)
        equal = int((number + 1) * self.dead + 1e-9) > int(number * self.dead + 1e-9)
        samples = []
        for place, length in enumerate(self.lengths[number * self.group :][: self.group]):
            ids = torch.randint(self.vocabulary, (length,), generator=draws).tolist()
            text = RIGHT if equal or place % 2 else WRONG
            chances = [-math.log(self.vocabulary)] * length
            samples.append(Response(prompt, ids, chances, text, "stop", self.version))
        return samples

    def sync(self, weights: Iterable[Any], version: int) -> None:
        """Take all weights, as every sampler does: getting one may be an exchange."""
        for _ in weights:
            pass
        self.version = version

    def received(self) -> Received:
        """Nothing is kept."""
        return Received(self.version, None)

    def live(self, part: int | None = None) -> None:
        """Nothing is kept."""

    def sleep(self) -> None:
        """Nothing to free."""

    def close(self) -> None:
        """Nothing to close."""


class Watch(Callback):
    """CPU seconds and peak MiB of each step, from scoring to the last update.

    The first step warms up, the second one measures memory, the others measure time.
    """

    def __init__(self) -> None:
        self.mib = self._start = self._before = 0.0
        self.seconds: list[float] = []
        self.metrics: Mapping[str, float] = {}
        return_freed_memory()

    def phase(self, name: str) -> None:
        """Begin at `scoring`, end at `syncing`."""
        if name == "scoring":
            self._start, self._before = time.process_time(), peak_mib(reset=True)
        if name == "syncing":
            self.seconds.append(time.process_time() - self._start)
            if len(self.seconds) == 2:
                self.mib = peak_mib() - self._before
                keep_freed_memory()

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of the last step."""
        self.metrics = metrics


def run(
    preset: str,
    model: Any,
    sampler: RandomSampler,
    settings: Mapping[str, Any],
    callback: Callback,
    folder: Path,
) -> TrainingResult:
    """Train a model on the sampler's responses, with all groups in each step."""
    groups = len(sampler.lengths) // sampler.group
    return rlobj.train(
        preset,
        model=model,
        tokenizer=sampler.tokenizer,
        data=[{"prompt": f"{i:0{PROMPT}d}", "answer": RIGHT} for i in range(groups)],
        reward="exact",
        sampler=sampler,
        out=folder / "run",
        settings={
            "data.template": "{prompt}",
            "sampling.prompts_per_step": groups,
            "sampling.group_size": sampler.group,
            "sampling.max_tokens": max(sampler.lengths),
            "sampling.max_logprob_gap": 1e9,
            **settings,
            **QUIET,
        },
        callbacks=[callback],
    )


def train(
    preset: str,
    sampler: RandomSampler,
    training: Mapping[str, Any],
    *,
    width: int = 128,
    steps: int = 2,
) -> dict[str, float]:
    """Train a random policy on the sampler's responses, one update a step.

    The learning rate is so small that every step makes the same update.

    Args:
        preset: the objective's.
        sampler: draws the responses.
        training: settings of `training`.
        width: of the policy.
        steps: that measure time, after two others.

    Returns:
        seconds (median), mib, grad_norm, and useful_share, skipped_share, rank_balance of tokens.
    """
    watch = Watch()
    fixed = {
        "training.updates_per_step": 1,
        "training.learning_rate": 1e-12,
        "training.warmup_steps": 0,
        "training.steps": 2 + steps,
    }
    given = {**fixed, **{f"training.{name}": value for name, value in training.items()}}
    with tempfile.TemporaryDirectory() as folder:
        run(preset, make_policy(sampler.vocabulary, width), sampler, given, watch, Path(folder))
    tokens = ("useful_share", "skipped_share", "rank_balance")
    found = {name: watch.metrics[f"tokens/{name}"] for name in tokens}
    found["grad_norm"] = watch.metrics["train/grad_norm"]
    return {**found, "seconds": median(watch.seconds[2:]), "mib": watch.mib}
