"""Settings with which a run fits its GPUs."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlobj.base.errors import Argument, ConfigError, Message, Setting, Typed, warn
from rlobj.settings.run_config import LoraConfig, RunConfig
from rlobj.sizing.memory import MARGIN, SHARE, TOKENS, Memory, estimate
from rlobj.sizing.sizes import GIB, Cards, Size

USEFUL = 5
"""The micro-batches that `choose` tries without recomputation: from 65536 to 4096 tokens. Smaller
ones leave a GPU idle."""
STRATEGY, RECOMPUTE = "training.strategy", "training.gradient_checkpointing"


class Choice(NamedTuple):
    """A value that fits, for a setting that nothing else has set."""

    setting: str
    value: Any
    reason: str

    def written(self) -> Any:
        """The value as a person writes it: `auto` for a share that counts held-out problems."""
        return "auto" if self.setting == "data.test_fraction" else self.value


def read_setting(config: RunConfig, setting: str) -> Any:
    """The value of a setting, such as training.strategy."""
    return functools.reduce(getattr, setting.split("."), config)


def is_open(config: RunConfig, setting: str) -> bool:
    """Whether a setting is left to `choose`."""
    return bool(read_setting(config, setting) == "auto")


def with_settings(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The configuration with other values of some settings, which are not checked."""

    def changed(section: Any, path: Sequence[str], value: Any) -> Any:
        name, *rest = path
        inner = changed(getattr(section, name), rest, value) if rest else value
        return section.model_copy(update={name: inner})

    for setting, value in values.items():
        config = changed(config, setting.split("."), value)
    return config


def choose(config: RunConfig, size: Size, cards: Cards) -> list[Choice]:
    """Choose the settings that decide whether a run fits, if they are open.

    The strategy is the first of ddp and fsdp2 that fits, without recomputation if possible. The
    micro-batch is the largest power of two that fits. vLLM gets what training leaves.

    Args:
        config: the run. A setting is open if it is "auto".
        size: of its model.
        cards: the GPUs.

    Returns:
        The choices, each with its reason. If nothing fits, those that need least.
    """
    choices: list[Choice] = []

    def take(setting: str, value: Any, reason: str) -> None:
        nonlocal config
        if is_open(config, setting):
            choices.append(Choice(setting, value, reason))
            config = with_settings(config, {setting: value})

    take("sampling.engine", "vllm", "the fastest sampler on a GPU")
    if config.sampling.engine == "vllm" and config.sampling.schedule == "continuous":
        take("sampling.vllm.sleep_level", 0, "responses are drawn all the time")
    elif config.sampling.engine == "vllm":
        sent = "the adapter alone" if config.model.synced_rank else "new weights"
        level = 1 if config.model.synced_rank else 2
        take("sampling.vllm.sleep_level", level, f"every update sends vLLM {sent}")
    values, memory = _fitting(config, size, cards, _strategies(config, cards.count))
    needed = f"{memory.needed.backward / GIB:.0f} of {cards.bytes / GIB:.0f} GiB"
    size_of_batch = "the largest that fits:" if memory.fits else "the smallest, and"
    simplest = "it is the simplest" if values[STRATEGY] == "ddp" else "ddp does not fit"
    offloads = config.training.offload == "cpu"
    reasons = {
        STRATEGY: "it has training.offload=cpu" if offloads else simplest,
        RECOMPUTE: f"without it, activations {'do not fit' if values[RECOMPUTE] else 'fit'}",
        TOKENS: f"{size_of_batch} a backward pass needs {needed}",
        SHARE: "what training leaves",
    }
    if config.training.shared_prompts is True:
        reasons[RECOMPUTE] = "prompts cannot be shared with it (training.shared_prompts=true)"
    for setting, value in values.items():
        take(setting, value, reasons[setting])
    return choices


def _strategies(config: RunConfig, count: int) -> list[str]:
    """The strategies that a run may have, the simplest first."""
    if config.training.offload == "cpu":
        return ["zero2", "zero3"]
    return ["ddp", "fsdp2"] if count > 1 else ["ddp"]


def _fitting(
    config: RunConfig, size: Size, cards: Cards, strategies: Sequence[str]
) -> tuple[dict[str, Any], Memory]:
    """The first values of the open settings that fit, with the memory that they need; if none does,
    the last that were tried."""

    def tried(setting: str, values: Sequence[Any]) -> Sequence[Any]:
        return values if is_open(config, setting) else [read_setting(config, setting)]

    always_shared = config.training.shared_prompts is True  # not with recomputation
    powers = [1 << power for power in range(16, 9, -1)]
    tries = [
        {STRATEGY: strategy, RECOMPUTE: again, TOKENS: tokens}
        for strategy in tried(STRATEGY, strategies)
        for again in tried(RECOMPUTE, [False] if always_shared else [False, True])
        for tokens in tried(TOKENS, powers if again or always_shared else powers[:USEFUL])
    ]
    for values in tries:
        changed, strategy = with_settings(config, values), values[STRATEGY]
        if config.sampling.engine == "vllm":
            [values[SHARE]] = tried(SHARE, [_share(changed, size, strategy, cards)])
            changed = with_settings(changed, values)
        memory = estimate(changed, size, strategy, cards.count, cards.bytes)
        if memory.fits:
            break
    return values, memory


def _share(config: RunConfig, size: Size, strategy: str, cards: Cards) -> float:
    """vLLM's share of a GPU in steps of 0.05: what training leaves, at most 0.85."""
    nothing = with_settings(config, {"sampling.engine": "vllm-server"})
    taken = estimate(nothing, size, strategy, cards.count, cards.bytes).needed
    awake = max(taken) if config.sampling.vllm.sleep_level == 0 else taken.sampling
    return max(0.05, min(0.85, int((1 - MARGIN - awake / cards.bytes) * 20) / 20))


def ways(
    config: RunConfig, size: Size, strategy: str, cards: Cards
) -> list[tuple[Message, Memory]]:
    """Changes with which a run fits its GPUs, the smallest first.

    Args:
        config: the run.
        size: of its model.
        strategy: a strategy other than "auto".
        cards: the GPUs.
    """
    again: dict[str, Any] = dict.fromkeys((STRATEGY, RECOMPUTE, TOKENS, SHARE), "auto")
    widest = _strategies(config, 2)[-1]
    strategies = [*dict.fromkeys((strategy, widest))]
    tries = [([], again, tried, cards.count) for tried in strategies]
    if config.model.lora is None:
        lora = {**again, "model.lora": LoraConfig()}
        rank = [Setting("model.lora.rank", 16)]
        tries += [(rank, lora, tried, cards.count) for tried in strategies]
    tries += [([], again, widest, cards.count * 2**power) for power in range(1, 7)]
    fitting: list[tuple[Message, Memory]] = []
    for first, changes, chosen, count in tries:
        more = Cards(count, cards.bytes)
        values, memory = _fitting(with_settings(config, changes), size, more, [chosen])
        old = {STRATEGY: strategy}
        typed: list[Typed] = [
            Setting(name, value)
            for name, value in values.items()
            if value != old.get(name, read_setting(config, name))
        ]
        if memory.fits and (count > 1 or chosen == strategy):
            if count > cards.count:
                typed.append(Argument("processes", count))
            fitting.append((Message.joined(" ", [*first, *typed]), memory))
            if count > cards.count:
                break
    return fitting


def require_memory(config: RunConfig, size: Size, strategy: str, cards: Cards) -> None:
    """Check that a run can fit the GPU. If only long responses do not fit, this is a warning.

    Raises:
        ConfigError: it cannot; the message has changes with which it can.
    """
    memory = estimate(config, size, strategy, cards.count, cards.bytes)
    if memory.fits:
        return
    others = ways(config, size, strategy, cards)
    fitting = [Message(way, f": {max(less.needed) / GIB:.1f} GiB") for way, less in others[:3]]
    room = "" if memory.has_room else "vLLM has no room for one sequence of the longest, "
    text = Message(
        f"{room}a process needs {max(memory.needed) / GIB:.1f} GiB, and the GPU has "
        f"{cards.bytes / GIB:.1f} GiB, of which {MARGIN:.0%} stay free. rlobj train --dry-run shows"
        " for what. It can fit with one of these:\n  ",
        Message.joined("\n  ", fitting or ["a smaller model, or LoRA and fsdp2 over more GPUs"]),
    )
    if memory.hopeless:
        raise ConfigError("the run cannot fit the GPU: ", text)
    warn(Message("the run may need more memory than the GPU has: ", text))
