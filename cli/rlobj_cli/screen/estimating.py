"""The tables of an estimate: memory by phase and part, tokens, hours, disk. Imports torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from rlobj.base.errors import ConfigError
from rlobj.config.run_config import RunConfig
from rlobj.training.memory import (
    MARGIN,
    PHASES,
    Choice,
    Memory,
    choose,
    longest,
    ways,
    with_settings,
)
from rlobj.training.memory import estimate as estimate_memory
from rlobj.training.parallel.environment import resolve_strategy
from rlobj.training.sizes import GIB, KINDS, Cards, Size, card_bytes
from rlobj.training.workload import DECODING, Work, work
from rlobj_cli.screen.console import facts_grid, plain_value, say, table


@dataclass(frozen=True)
class Estimated:
    """What an estimate found.

    Attributes:
        config: the run, with the choices.
        size: of its model.
        cards: the GPUs; None = there is none.
        memory: of a process.
        strategy: of the run.
        ranks: number of processes.
        choices: the settings that were open.
        ways: changes with which the run fits, if it does not, each with the GiB of a process.
        work: tokens, hours and disk space; None without GPUs.
        used: the share of a GPU's peak that is assumed.
    """

    config: RunConfig
    size: Size
    cards: Cards | None
    memory: Memory
    strategy: str
    ranks: int
    choices: Sequence[Choice] = ()
    ways: Sequence[tuple[str, float]] = ()
    work: Work | None = None
    used: float = 0.4

    def plain(self) -> dict[str, Any]:
        """The numbers as plain data; memory in bytes."""
        memory = self.memory
        return {
            "model": {"name": self.config.model.name, **asdict(self.size)},
            "gpus": self.cards and asdict(self.cards),
            "strategy": self.strategy,
            "memory": {name: each._asdict() for name, each in memory.parts.items()},
            "needed": memory.needed._asdict(),
            "fits": memory.fits,
            "longest_sequences_in_cache": memory.sequences,
            "host": memory.host,
            "choices": [each._asdict() for each in self.choices],
            "ways": [{"change": way, "gib": gib} for way, gib in self.ways],
            "work": self.work and {**asdict(self.work), "hours": self.work.hours},
        }


def read_size(config: RunConfig, *, local: bool = False) -> Size:
    """The size of the model of a run.

    Raises:
        ConfigError: its config.json cannot be read.
    """
    size = Size.named(config.model, local=local)
    if size is None:
        raise ConfigError(
            f"the config.json of {config.model.name} is neither on this machine nor on the hub, or "
            "transformers cannot read it. Expected a folder with a config.json, or the id of a "
            "model on the hub: get one with: hf download ID config.json --local-dir FOLDER"
        )
    return size


def estimated(
    config: RunConfig, gpus: str | None, mean: float | None = None, used: float = 0.4
) -> Estimated:
    """The estimate of a run on some GPUs; None = those of this machine.

    Raises:
        ConfigError: there are no GPUs, or config.json cannot be read.
    """
    if gpus is None and card_bytes() is None:
        raise ConfigError("this machine has no GPU: name the GPUs, as --gpus 8x80 or --gpus A100")
    cards = Cards.parse(gpus) if gpus else Cards(torch.cuda.device_count(), card_bytes() or 0)
    size = read_size(config)
    choices = choose(config, size, cards)
    config = with_settings(config, {each.setting: each.value for each in choices})
    return _estimated(config, size, cards, choices, mean, used)


def estimated_here(config: RunConfig, size: Size, ranks: int) -> Estimated:
    """The estimate of a run with its own settings, on the GPUs or the CPU of this machine."""
    if (card := card_bytes()) is not None:
        return _estimated(config, size, Cards(ranks, card))
    strategy = resolve_strategy(config.training.strategy, os.environ)
    memory = estimate_memory(config, size, strategy, ranks)
    return Estimated(config, size, None, memory, strategy, ranks)


def short(config: RunConfig, ranks: int) -> str:
    """Memory and hours in a line, for the start of a run; "" without a GPU."""
    size = Size.named(config.model, local=True) if card_bytes() is not None else None
    if size is None:
        return ""
    found = estimated_here(config, size, ranks)
    memory, done = found.memory, found.work
    hours = f"; {done.hours:,.1f} hours by arithmetic" if done else ""
    return f"{max(memory.needed) / GIB:.0f} of {(memory.card or 0) / GIB:.0f} GiB{hours}"


def _estimated(
    config: RunConfig,
    size: Size,
    cards: Cards,
    choices: Sequence[Choice] = (),
    mean: float | None = None,
    used: float = 0.4,
) -> Estimated:
    strategy = resolve_strategy(config.training.strategy, os.environ)
    memory = estimate_memory(config, size, strategy, cards.count, cards.bytes)
    found = [] if memory.fits else ways(config, size, strategy, cards)
    return Estimated(
        *(config, size, cards, memory, strategy, cards.count, choices),
        [(way, max(each.needed) / GIB) for way, each in found],
        work(config, size, memory, cards, mean=mean, used=used),
        used,
    )


def show(console: Console, found: Estimated) -> None:
    """Print an estimate, with the choices and the changes with which the run fits."""
    size, cards = found.size, found.cards
    name = Path(str(found.config.model.name or "embedded")).name
    on = f"{cards.count} x {cards.bytes / GIB:g} GiB ({cards.kind})" if cards else "the CPU"
    title = f"  {name}, {size.total / 1e9:.2f} billion parameters, on {on}"
    console.print(Text.assemble(("rlobj estimate", "bold"), title), soft_wrap=True)
    show_estimate(console, found)
    if found.choices:
        shown = table("chosen setting", "value", "because")
        for each in found.choices:
            shown.add_row(each.setting, plain_value(each.value), each.reason)
        console.print(shown)
    if not found.memory.fits:
        say(console, Text("It does not fit. It fits with one of these:", style="red"))
        for way, gib in found.ways:
            typed = way.replace("set ", "--set ")
            console.print(Text(f"  {typed}   {gib:.0f} GiB"), soft_wrap=True)
        if not found.ways:
            console.print(Text("  a smaller model, or more or larger GPUs"))


def show_estimate(console: Console, found: Estimated) -> None:
    """Print the memory of a process by part and phase; with GPUs also tokens, hours and disk."""
    memory, strategy, ranks = found.memory, found.strategy, found.ranks
    unit, name = (GIB, "GiB") if max(memory.needed) >= GIB else (2**20, "MiB")
    shown = table(f"memory of a process, {name} ({strategy}, processes: {ranks})", right=PHASES)
    for part, each in memory.parts.items():
        if any(each):
            shown.add_row(part, *(f"{x / unit:.1f}" if x else "" for x in each))
    shown.add_section()
    shown.add_row("together", *(f"{x / unit:.1f}" for x in memory.needed))
    if memory.card is not None:
        whole = memory.card / unit
        free = f"{(1 - MARGIN) * whole:.1f}"
        shown.add_row(f"of {whole:.1f}, less {MARGIN:.0%} for CUDA and NCCL", *[free] * 4)
    console.print()
    console.print(shown)
    if found.work is not None:
        _show_work(console, found, found.work)


def _show_work(console: Console, found: Estimated, done: Work) -> None:
    """Print tokens, hours and disk space, with what they assume."""
    config, kind = found.config, KINDS[found.cards.kind if found.cards else "H100"]
    total = sum(done.seconds.values())
    seconds = ", ".join(f"{name} {each:,.0f}" for name, each in done.seconds.items() if each >= 0.5)
    disk = ", ".join(f"{name} {x / 1e9:,.1f}" for name, x in done.disk.items() if x >= 5e7)
    facts = {
        "tokens": f"{done.tokens / 1e6:.2f} million a step: {done.responses:,} responses of "
        f"{done.mean:,.0f} tokens (at most {config.sampling.max_tokens:,}; set --mean-tokens)",
        "seconds": f"{total:,.0f} a step: {seconds}",
        "hours": f"{done.hours:,.1f} for {done.steps} steps. Arithmetic, not a measurement: "
        f"{found.used:.0%} of {kind[1] / 1e12:.0f} TFLOP/s (set --utilization), "
        f"{DECODING:.0%} of {kind[2] / 1e12:.2f} TB/s in generation",
        "disk": f"{sum(done.disk.values()) / 1e9:,.0f} GB: {disk}",
        "host": f"{found.memory.host / GIB:,.0f} GiB of memory a process, while it loads",
    }
    if found.memory.sequences is not None:
        text = f"the cache of vLLM takes {found.memory.sequences} sequences"
        facts["cache"] = f"{text} of {longest(config, found.size):,} tokens, on each GPU"
    console.print(facts_grid(facts), "")
