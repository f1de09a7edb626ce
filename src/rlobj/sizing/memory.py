"""The memory that a run needs on each GPU, by phase and part."""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from rlobj.base.errors import ConfigError, reported, warn
from rlobj.models.checking import UnreadableModel
from rlobj.models.score_sources import score_folder
from rlobj.rewards.reward_model import RewardModel
from rlobj.settings.run_config import PLAIN, ModelConfig, RunConfig
from rlobj.settings.scores import Lora, ScoreConfig, single_scores
from rlobj.sizing.activations import WORD, MicroBatch
from rlobj.sizing.sizes import GIB, Size

MARGIN = 0.08
"""Share of a GPU that is left free: for its context, for NCCL, and for fragments."""
PROMPT = 1024
"""Tokens of the longest prompt, if `data.max_prompt_tokens` does not say."""
CHARACTERS = 4
"""Characters of a token of what tools say."""
ZERO_LIVE = 1_000_000_000
"""Parameters that ZeRO 3 keeps gathered (`stage3_max_live_parameters`)."""
BUCKET_ELEMENTS = 50_000_000
"""Gradient elements per reduction of ZeRO, 0.2 GB; stages 2 and 3 allocate them in advance."""
VLLM_WORK = 2 * GIB
"""What vLLM needs beside weights and cache: activations and captured graphs."""
TOKENS, SHARE = "training.micro_batch_tokens", "sampling.vllm.gpu_memory_utilization"
OFFLOADED = ("weights that ZeRO updates", "gradients", "moments", "optimizer's work")
"""What `training.offload` moves to the host."""
UPDATE = "update of the value"
"""What it needs more than that of the policy, which comes after it."""
BY_TOKENS = ("activations", "tile of logits", "temporary tensors", "keys and values", UPDATE)
"""The parts that depend on how long responses are, here the longest."""
PROCESS = 3 * GIB
"""Host memory of a process with a GPU: imports, CUDA, the tables of a step."""
PHASES = ("sampling", "scoring", "backward", "optimizer")


class Use(NamedTuple):
    """Bytes of a part of a run in each phase."""

    sampling: float = 0.0
    scoring: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0

    @classmethod
    def always(cls, count: float) -> Self:
        """The same in every phase."""
        return cls(count, count, count, count)


@dataclass(frozen=True)
class Memory:
    """The memory of one process.

    Attributes:
        parts: bytes of each part of a run, by phase.
        card: bytes of the GPU; None = there is none.
        sequences: the longest sequences that fit the cache of keys and values; None = no vLLM.
        host: bytes of the machine's memory that the process needs beside them.
    """

    parts: Mapping[str, Use]
    card: int | None
    sequences: int | None = None
    host: float = 0.0

    @property
    def needed(self) -> Use:
        """Bytes of all parts together, by phase."""
        return Use(*(sum(uses) for uses in zip(*self.parts.values(), strict=True)))

    @property
    def fits(self) -> bool:
        """Whether the GPU has as much with a margin, or there is none."""
        card = self.card
        return card is None or (self.has_room and max(self.needed) <= (1 - MARGIN) * card)

    @property
    def has_room(self) -> bool:
        """Whether vLLM's cache has room for a longest sequence."""
        return self.sequences is None or self.sequences > 0

    @property
    def hopeless(self) -> bool:
        """Whether the parts that do not depend on responses, or vLLM's cache, can never fit."""
        parts = {name: use for name, use in self.parts.items() if name not in BY_TOKENS}
        sure = Memory(parts, self.card)
        return self.card is not None and (max(sure.needed) > self.card or not self.has_room)


def estimate(
    config: RunConfig, size: Size, strategy: str, ranks: int, card: int | None = None
) -> Memory:
    """Estimate the memory of each process of a run.

    Args:
        config: the run; settings that are "auto" count as their usual value.
        size: of its model.
        strategy: a strategy other than "auto".
        ranks: number of processes, each with a GPU of its own.
        card: bytes of the GPU; None = there is none, and a run on the CPU computes in float32.
    """
    sharded = ranks if strategy in ("zero3", "fsdp2") else 1
    batch = micro_batch(config, size, ranks, card)
    parts, moved = _training(config, batch, config.model.lora, strategy, ranks, card)
    copied = _copied(size, config.model.lora, ranks)
    if config.critic is not None:
        lora, value = config.critic.lora, value_size(config, size)
        passed = replace(batch, size=value, lora=lora is not None, logits=False)
        of_value, more = _training(config, passed, lora, strategy, ranks, card)
        always, others = (sum(map(min, uses.values())) for uses in (of_value, parts))
        pairs = zip(Memory(of_value, card).needed, Memory(parts, card).needed, strict=True)
        update = Use(*(max(0.0, value - always - (policy - others)) for value, policy in pairs))
        parts |= {f"value {config.objective.critic}": Use.always(always), UPDATE: update}
        moved, copied = moved + more, max(copied, _copied(value, lora, ranks))
    trained = _trained(size, config.model.lora)
    read = {n: config.scores.get(n, ScoreConfig()) for n in sorted(config.objective.read_scores)}
    for name, score in single_scores(read).items():
        if kept := _score_bytes(name, score, config, size, trained, card) / sharded:
            label = "reference model" if score.required else f"score {name}"
            parts[label] = Use.always(kept)
    for reward in config.rewards.parts:  # whole in each process, if it has no device of its own
        if isinstance(reward, RewardModel) and not reward.device:
            total = (_named("rewards.model", reward.model, classifier=True) or size).total
            label = f"reward model {reward.name or ''}".rstrip()
            parts[label] = Use.always(total * (4.0 if card is None else 2.0))
    return _with_sampler(config, size, parts, ranks, card, PROCESS + copied + moved)


def _training(
    config: RunConfig,
    batch: MicroBatch,
    lora: Lora | None,
    strategy: str,
    ranks: int,
    card: int | None,
) -> tuple[dict[str, Use], float]:
    """The parts of a model that is trained, and the bytes of the host that offload takes."""
    size, trained = batch.size, _trained(batch.size, lora)
    parts = dict(_states(trained, size, strategy, ranks))
    stored = WORD * trained / (1 if strategy == "ddp" else ranks)
    if not card:  # on a CPU the squares of a tensor at a time
        stored = min(stored, 2.0 * WORD * size.matrix)
    parts["optimizer's work"] = Use(optimizer=0.0 if config.training.fused else stored)
    offload = card and config.training.offload == "cpu" and strategy in ("zero2", "zero3")
    moved = sum(parts.pop(name, Use()).optimizer for name in OFFLOADED) if offload else 0.0
    if lora is not None:
        sharded = ranks if strategy in ("zero3", "fsdp2") else 1
        parts["frozen weights"] = Use.always(WORD * size.total / sharded)
    parts["activations"] = Use(backward=batch.kept())
    tile, work = batch.tile(), batch.backward()
    parts["tile of logits"] = Use(0, tile, tile, 0)
    parts["temporary tensors"] = Use(0, max(batch.forward() - tile, 0), work - tile, 0)
    if batch.half:
        inside = 2.0 * (size.total - size.ends)
        samples = batch.logits and config.sampling.engine == "transformers"
        layer = inside if strategy.startswith("zero") else inside / max(size.layers, 1)
        update = layer if batch.recompute else inside  # DeepSpeed's autocast keeps its copies
        parts["weights in bfloat16"] = Use(inside if samples else 0.0, layer, update, 0)
    return parts, moved


def _trained(size: Size, lora: Lora | None) -> int:
    return size.total if lora is None else lora.rank * size.adapters


def _copied(size: Size, lora: Lora | None, ranks: int) -> float:
    """Bytes of a matrix while a model is loaded, or of weights and moments for a checkpoint."""
    return max(WORD * size.matrix, WORD * (size.total + 2 * _trained(size, lora)) / ranks)


def value_size(config: RunConfig, size: Size) -> Size:
    """The size of the value that the objective reads; a copy of the policy is as large as it."""
    critic, setting = config.critic, f"scores.{config.objective.critic}.model"
    named = None
    if critic is not None and not critic.is_policy:
        named = _named(setting, critic.model, code=config.model.trust_remote_code)
    return (named or size).of_value()


def micro_batch(config: RunConfig, size: Size, ranks: int, card: int | None) -> MicroBatch:
    """The largest micro-batch of a run: a sequence that is longer has its own."""
    training, sampling, dtype = config.training, config.sampling, config.model.dtype
    budget, length = training.micro_batch_tokens, longest(config, size)
    step = -(-sampling.prompts_per_step * sampling.group_size // ranks) * length
    return MicroBatch(
        size,
        tokens=min(max(PLAIN[TOKENS] if budget == "auto" else budget, length), step),
        half=dtype == "bfloat16" or (dtype == "auto" and card is not None),
        lora=config.model.lora is not None,
        recompute=training.gradient_checkpointing is True,
    )


def longest(config: RunConfig, size: Size) -> int:
    """Tokens of the longest prompt with the longest response, or of the longest conversation.

    A conversation has `sampling.context` tokens; without this setting, a tool says
    `environment.max_output` characters after each turn but the last.
    """
    most, environment = _written(config), config.environment
    if environment.active:
        said = (environment.max_turns - 1) * environment.max_output // CHARACTERS
        most = config.sampling.context or most + said
    return min(most, size.context or 1 << 40)


def sampled(config: RunConfig) -> int:
    """Responses that a step samples, over all processes; of dynamic sampling, the first batch."""
    sampling, dynamic = config.sampling, config.sampling.dynamic
    more = dynamic.oversampling if dynamic and dynamic.whole_batches else 1.0
    return math.ceil(more * sampling.prompts_per_step * sampling.group_size)


def evaluated(config: RunConfig) -> int:
    """Responses of an evaluation, over all processes; 0 without evaluations."""
    evaluation, problems = config.evaluation, config.evaluation.problems
    problems = 500 if problems is None else problems
    return evaluation.samples * problems if evaluation.every else 0


def heard(config: RunConfig, size: Size) -> int:
    """Tokens that tools say in the longest conversation."""
    return max(0, longest(config, size) - _written(config))


def _written(config: RunConfig) -> int:
    return (config.data.max_prompt_tokens or PROMPT) + config.sampling.max_tokens


def _states(trained: float, size: Size, strategy: str, ranks: int) -> Iterator[tuple[str, Use]]:
    """Weights, gradients and moments that are trained, and what the strategy adds.

    ddp has all of them. Over several processes it keeps buckets for the gradients, which move there
    at the last micro-batch. ZeRO has a second copy of the weights, which it updates. It shards that
    copy, the moments and the gradients, and in stage 3, as fsdp2, everything; then some weights are
    gathered while they are used.
    """
    whole, part = WORD * trained, WORD * trained / ranks
    sharded = strategy in ("zero3", "fsdp2")
    yield "weights", Use.always(part if sharded else whole)
    if strategy in ("zero2", "zero3"):
        yield "weights that ZeRO updates", Use.always(part)
    if strategy == "ddp":
        kept = whole if ranks > 1 else 0.0
        yield "gradients", Use(0, 0, whole, 0 if kept else whole)
        yield "buckets of gradients", Use.always(kept)
    else:
        yield "gradients", Use(0, 0, part, part)
    yield "moments", Use.always(2 * whole if strategy == "ddp" else 2 * part)
    if strategy.startswith("zero"):
        yield "buckets of gradients", Use(0, 0, 2 * WORD * min(BUCKET_ELEMENTS, trained), part)
    if sharded:
        layer = (size.total - size.ends) / max(size.layers, 1)
        live = size.ends + 2 * layer
        if strategy == "zero3":
            live = min(size.total, max(live, ZERO_LIVE))
        gathered, gradients = WORD * live, WORD * min(trained, size.ends + layer)
        yield "gathered weights", Use(0, gathered, gathered + gradients, 0)


def _score_bytes(
    name: str, score: ScoreConfig, config: RunConfig, size: Size, trained: float, card: int | None
) -> float:
    """Bytes that the weights of a score take on all ranks together, or on each without shards."""
    if score.is_policy:
        return 4.0 * trained if score.ema or score.every else 0.0
    if score.server or (score.required and config.model.lora is not None):
        return 0.0
    total = size.total
    if not score.required:
        folder = score_folder(name, score) if score.run else str(score.model)
        setting = f"scores.{name}.{'run' if score.run else 'model'}"
        total = (_named(setting, folder, code=config.model.trust_remote_code) or size).total
    usual = card is not None and not score.required
    half = score.dtype == "bfloat16" or (score.dtype == "auto" and usual)
    return total * (2.0 if half else 4.0)


@functools.cache
def _named(
    setting: str, model: str, *, code: bool = False, classifier: bool = False
) -> Size | None:
    """The size of another model than the policy; None, with a warning, if it is unknown.

    Args:
        setting: names the model.
        model: folder or hub id.
        code: its repository may have code.
        classifier: it is a sequence classifier, of which only the parameters are counted.
    """
    with reported(ConfigError, setting, ConfigError):
        try:
            config = ModelConfig(name=model, trust_remote_code=code)
            return Size.named(config, classifier=classifier)
        except UnreadableModel as error:
            warn(f"{setting}: {error}. Its memory is counted as that of the policy")
            return None


def _with_sampler(
    config: RunConfig, size: Size, parts: dict[str, Use], ranks: int, card: int | None, host: float
) -> Memory:
    """The memory with what samples responses; a sharded policy is sampled from a copy."""
    sampling, engine = config.sampling, config.sampling.engine
    word = 4 if config.model.dtype == "float32" or not card else 2
    weights = float(word * size.total)
    cached = 2 * size.layers * size.keys * word
    sequence = cached * longest(config, size)
    if engine == "transformers":
        if "gathered weights" in parts or sampling.ahead:
            parts["sampler's copy"] = Use.always(WORD * size.total)
        most = -(-max(sampled(config), evaluated(config)) // ranks)
        tokens = min(sampling.batch_tokens, most * longest(config, size))
        parts["keys and values"] = Use(max(cached * tokens, sequence))
    if engine != "vllm":
        return Memory(parts, card, host=host)
    settings = sampling.vllm
    share, cache = settings.gpu_memory_utilization, settings.kv_cache_bytes
    whole = (PLAIN[SHARE] if share == "auto" else share) * (card or 0)
    taken = weights + cache if isinstance(cache, int) else max(weights, whole)
    room = cache if isinstance(cache, int) else max(0.0, taken - weights - VLLM_WORK)
    parts["vLLM"] = Use.always(taken) if settings.sleep_level == 0 else Use(taken)
    host += weights if settings.sleep_level == 1 else 0.0
    return Memory(parts, card, int(room / max(sequence, 1)), host)
