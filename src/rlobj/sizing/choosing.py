"""Settings that are `auto`. They get their values once, when a run begins, and keep them.

engine -> what fits the GPUs -> the values of a CPU
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlobj.base.errors import ConfigError, DataError, RlobjError, Setting
from rlobj.data import Problem, load_problems
from rlobj.data.sources import place_of
from rlobj.samplers.vllm.installed import check_vllm
from rlobj.samplers.vllm.settings import RANKS
from rlobj.settings.layers import flattened
from rlobj.settings.run_config import PLAIN, RunConfig
from rlobj.sizing.fitting import Choice, choose, is_open, with_settings
from rlobj.sizing.sizes import Cards, Size

_KEPT = ("model.dtype", "data.test_fraction", "sampling.engine", *PLAIN)
"""Settings that a resumed run has from its beginning."""
_SHARE, _HELD_OUT = 0.05, 256
"""Share of the problems that is held out by default, and the largest number of them."""


def choose_settings(
    config: RunConfig,
    size: Size | None,
    cards: Cards | None,
    stored: Mapping[str, Any] | None = None,
    unknown: str = "",
) -> list[Choice]:
    """Choose a value for each setting that is `auto`.

    Args:
        config: the run.
        size: of its model; None = unknown; then the choices are those of a CPU.
        cards: the GPUs of all processes; None = there are none.
        stored: settings of a run that is resumed, which stay.
        unknown: why the size is unknown, for the reason of the choices.

    Returns:
        The choices; those without a reason are what a run on a CPU has.
    """
    made: list[Choice] = []

    def take(choices: Iterable[Choice]) -> RunConfig:
        for choice in choices:
            if is_open(settled(config, made), choice.setting):
                made.append(choice)
        return settled(config, made)

    before = flattened(stored or {})
    take(Choice(name, before[name], "") for name in _KEPT if before.get(name, "auto") != "auto")
    chosen = take([_engine(config, cards)])
    chosen = take(_lora_sync(chosen))
    if cards is not None and size is not None and config.model.name is not None:
        take(choose(chosen, size, cards))
    why = unknown and f"that of a CPU; set what your GPUs need, because {unknown}"
    take(
        Choice(name, value, why if name.startswith("training.") else "")
        for name, value in PLAIN.items()
    )
    return made


def settled(config: RunConfig, choices: Sequence[Choice]) -> RunConfig:
    """The configuration with the values of the choices."""
    return with_settings(config, {choice.setting: choice.value for choice in choices})


def _engine(config: RunConfig, cards: Cards | None) -> Choice:
    """vLLM if it can run, else transformers."""
    if config.model.name is None:
        return Choice("sampling.engine", "transformers", "")
    why = "there is no GPU"
    if config.sampling.async_depth:
        why = "vLLM that samples ahead is a server: sampling.engine=vllm-server"
    elif cards is not None:
        try:
            return Choice("sampling.engine", "vllm", f"vLLM {check_vllm()[1]} is installed")
        except RlobjError as error:
            why = str(error).rstrip(".")
    return Choice("sampling.engine", "transformers", why)


def _lora_sync(config: RunConfig) -> list[Choice]:
    """What a run with LoRA sends its sampler.

    Raises:
        ConfigError: the adapter alone, and the sampler cannot take it.
    """
    lora, sampling = config.model.lora, config.sampling
    if lora is None:
        return []
    why = ""
    if not sampling.engine.startswith("vllm"):
        why = f"sampling.engine={sampling.engine} takes no adapters"
    elif sampling.engine == "vllm" and sampling.vllm.sleep_level == 2:
        why = "sampling.vllm.sleep_level=2 deletes the other weights"
    elif lora.rank > RANKS[-1]:
        why = f"vLLM takes a rank of at most {RANKS[-1]}"
    if why and lora.sync == "adapter":
        raise ConfigError(f"{why}; use ", Setting("model.lora.sync", "merged"))
    value = "merged" if why else "adapter"
    return [Choice("model.lora.sync", value, why or "vLLM keeps the other weights")]


def held_out_share(
    config: RunConfig, *, rows: bool = False
) -> tuple[list[Choice], dict[str, list[Problem]]]:
    """What `data.test_fraction` is if it is auto: a share of a source without a test part.

    The problems that were read for it are returned too, by the name of their split.

    Args:
        config: the run.
        rows: the problems are rows that Python code passed.

    Raises:
        DataError: the source cannot be read.
    """
    if config.data.test_fraction != "auto":
        return [], {}
    none = [Choice("data.test_fraction", 0.0, "")]
    data = settled(config, none).data
    if rows or data.test is not None or not config.evaluation.every or config.model.name is None:
        return none, {}
    try:
        return none, {"test": load_problems(data, "test", answers=config.rewards.needs_answers)}
    except DataError as error:
        why = str(error).partition(". ")[0]
    every = data.model_copy(update={"limit": None})  # which counts what the split leaves
    problems = load_problems(every, "train", answers=config.needs_answers)
    places = list(map(place_of, problems))
    most = min(int(_SHARE * len(places)), _HELD_OUT)
    share = math.floor(1e6 * sorted(places)[most]) / 1e6
    held_out = [one for one, place in zip(problems, places, strict=True) if place < share]
    if {one.source for one in held_out} != {one.source for one in problems}:
        return none, {}  # some of each of several sources, or nothing
    reason = (
        f"{len(held_out)} of {len(problems)} problems are held out, as {why}. To evaluate on a "
        "benchmark: data.test=math500; on nothing: evaluation.every=0"
    )
    read: dict[str, list[Problem]] = {}
    alike = config.needs_answers == config.rewards.needs_answers
    if alike and isinstance(data.source, str):  # else the two parts are read in different ways
        rest = [one for one, place in zip(problems, places, strict=True) if place >= share]
        read = {"train": rest[: data.limit], "test": held_out[: data.limit]}
    return [Choice("data.test_fraction", share, reason)], read


def smallest_cards(devices: Sequence[int | None]) -> Cards | None:
    """The cards of all ranks, as many as there are ranks and each like the smallest.

    Args:
        devices: the bytes of each rank's GPU; None = it has none.
    """
    cards = [card for card in devices if card is not None]
    return Cards(len(devices), min(cards)) if cards else None
