"""The tables of an estimate: memory by phase and part, tokens, hours, disk. Imports torch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from rlobj.base.errors import Message
from rlobj.models.checking import check_model, unreadable
from rlobj.reporting.terminal import Screen, facts_grid, say, table, working
from rlobj.settings.run_config import RunConfig
from rlobj.sizing.choosing import choose_settings, settled
from rlobj.sizing.fitting import Choice, choose, ways
from rlobj.sizing.memory import MARGIN, PHASES, Memory, micro_batch
from rlobj.sizing.memory import estimate as estimate_memory
from rlobj.sizing.sizes import GIB, Cards, Size, card_bytes
from rlobj.sizing.workload import DECODING, Work, work
from rlobj.training.parallel.environment import resolve_strategy
from rlobj_cli.screen.console import plain_value
from rlobj_cli.screen.errors import typed


@dataclass(frozen=True)
class Estimated:
    """What an estimate found.

    Attributes:
        config: the run, with the choices.
        size: of its model.
        strategy: of the run.
        ranks: number of processes.
        memory: of a process.
        cards: the GPUs, or the CPU.
        work: tokens, hours and disk space.
        ways: changes with which the run fits, if it does not.
        choices: the settings that were open.
    """

    config: RunConfig
    size: Size
    strategy: str
    ranks: int
    memory: Memory
    cards: Cards
    work: Work
    ways: Sequence[tuple[Message, Memory]]
    choices: Sequence[Choice]

    def json(self) -> str:
        """Everything but the configuration; memory in bytes, by part and phase."""
        shown = {
            "phases": PHASES,
            **{name: value for name, value in vars(self).items() if name != "config"},
            "needed": self.memory.needed,
            "fits": self.memory.fits,
            "hours": self.work.hours,
        }
        return json.dumps(shown, indent=1, default=vars)


def estimated(
    config: RunConfig,
    size: Size,
    ranks: int,
    cards: Cards,
    mean: float | None = None,
    used: float | None = None,
    choices: Sequence[Choice] = (),
) -> Estimated:
    """The estimate of a run with its settings, on some GPUs or on the CPU."""
    strategy = resolve_strategy(config.training.strategy, os.environ)
    memory = estimate_memory(config, size, strategy, ranks, cards.gpu)
    done = work(config, size, memory, cards, mean=mean, used=used)
    fitting = () if memory.fits else ways(config, size, strategy, cards)
    return Estimated(config, size, strategy, ranks, memory, cards, done, fitting, choices)


def chosen(
    config: RunConfig, gpus: str | None, mean: float | None, used: float | None
) -> Estimated:
    """The estimate of a run after `choose`, on some GPUs or on this machine's CPU ("cpu").

    None = the GPUs of this machine, or its CPU if it has none.

    Raises:
        ConfigError: `gpus` is something else, there is no such model, or its
            config.json cannot be read or has a number that no model has.
    """
    with working(Screen(stderr=True), "reading config.json"):
        check_model(config, weights=False)
        size = Size.named(config.model, local=True)
    if size is None:
        raise unreadable(config.model.name)
    if gpus is None and (card := card_bytes()):
        cards = Cards(torch.cuda.device_count(), card)
    elif gpus is None or gpus.lower() == "cpu":
        cards = measured_cpu()
    else:
        cards = Cards.parse(gpus)
    if cards.gpu is None:
        choices = choose_settings(config, size, None, {})
    else:
        choices = choose(config, size, cards)
    config = settled(config, choices)
    return estimated(config, size, cards.count, cards, mean, used, choices)


def measured_cpu() -> Cards:
    """This machine's CPU, and what is shown while it is measured."""
    with working(Screen(stderr=True), "measuring this CPU"):
        return Cards.of_cpu()


def short(config: RunConfig, ranks: int) -> str:
    """Memory and hours, and what they assume, for the start of a run; "" without a GPU."""
    card = card_bytes()
    size = None if card is None else Size.named(config.model, local=True)
    if card is None or size is None:
        return ""
    cards = Cards(ranks, card)
    config = settled(config, choose_settings(config, size, cards, os.environ))
    estimate = estimated(config, size, ranks, cards)
    needed = f"{max(estimate.memory.needed) / GIB:.0f} of {card / GIB:.0f} GiB on each GPU"
    line = f"{needed}; {estimate.work.hours:,.1f} hours by arithmetic"
    return "\n".join([line, *(f"assumed: {assumption}" for assumption in estimate.memory.assumed)])


def show(console: Console, estimate: Estimated) -> None:
    """Print an estimate, with the choices and the changes with which the run fits."""
    cards, name = estimate.cards, Path(str(estimate.config.model.name or "embedded")).name
    on = f"{cards.count} x {cards.bytes / GIB:.4g} GiB ({cards.kind})"
    title = f"  {name}, {estimate.size.total / 1e9:.2f} billion parameters, on {on}"
    console.print(Text.assemble(("rlobj estimate", "bold"), title), soft_wrap=True)
    show_tables(console, estimate)
    show_choices(console, estimate.choices)
    if not estimate.memory.fits:
        fitting = [
            f"{typed(way, {'processes': '--processes'})}: {max(memory.needed) / GIB:.0f} GiB"
            for way, memory in estimate.ways
        ]
        say(console, Text("It does not fit. It fits with one of these:", style="red"))
        for line in fitting or ["a smaller model, or more or larger GPUs"]:
            console.print(Text(f"  {line}"), soft_wrap=True)


def show_choices(console: Console, choices: Sequence[Choice]) -> None:
    """Print the settings that were chosen for a reason."""
    shown = table("setting that was chosen", "because")
    for choice in choices:
        if choice.reason:
            shown.add_row(f"{choice.setting}={plain_value(choice.written())}", choice.reason)
    if shown.row_count:
        console.print(shown)


def show_tables(console: Console, estimate: Estimated) -> None:
    """Print the memory of a process by part and phase; with GPUs also tokens, hours and disk."""
    memory = estimate.memory
    unit, name = (GIB, "GiB") if max(memory.needed) >= GIB else (2**20, "MiB")
    batch = micro_batch(estimate.config, estimate.size, estimate.ranks, memory.card)
    text = f"memory of a process, {name}\n({estimate.strategy}, processes: {estimate.ranks},\n"
    text += f"micro-batch: up to {batch.tokens:,} tokens)"
    shown = table(text, right=PHASES)
    for part, sizes in memory.parts.items():
        if any(sizes):
            shown.add_row(part, *(f"{size / unit:.1f}" if size else "" for size in sizes))
    shown.add_section()
    shown.add_row("together", *(f"{size / unit:.1f}" for size in memory.needed))
    if memory.card is None:
        ranks = f" for {estimate.ranks} processes" if estimate.ranks > 1 else ""
        shown.add_row(f"this machine has{ranks}", *[f"{estimate.cards.bytes / unit:.1f}"] * 4)
    else:
        free = f"{(1 - MARGIN) * memory.card / unit:.1f}"
        shown.add_row(f"the GPU, less {MARGIN:.0%} for CUDA and NCCL", *[free] * 4)
    console.print("", shown, sep="\n")
    if memory.card is None and estimate.ranks * max(memory.needed) > estimate.cards.bytes:
        text = "It needs more than that. Use a smaller training.micro_batch_tokens, "
        say(console, Text(f"{text}sampling.batch_tokens or model", style="red"))
    for assumption in memory.assumed:
        say(console, Text(f"assumed: {assumption}", style="yellow"))
    console.print(facts_grid(_facts(estimate)), "", sep="\n")


def _facts(estimate: Estimated) -> dict[str, Any]:
    """Tokens, hours and disk space in words, with what they assume."""
    done, cards = estimate.work, estimate.cards

    def listed(parts: Any, unit: float = 1.0) -> str:
        return ", ".join(
            f"{name} {amount / unit:,.0f}" for name, amount in parts.items() if amount >= unit / 2
        )

    speed = f"{cards.speed.flops / 1e12:.0f} TFLOP/s"
    share = f", and {DECODING:.0%} of {cards.speed.bandwidth / 1e12:.2f} TB/s in generation"
    if cards.gpu is None:  # measured here, a moment ago
        speed, share = f"{cards.speed.flops / 1e9:.0f} GFLOP/s, measured on this CPU", ""
    facts = {
        "tokens": f"{done.tokens / 1e6:.2f} million a step are trained on; {done.responses:,} "
        f"responses of {done.mean:,.0f} tokens to prompts of {done.prompt:,} are sampled, an "
        "assumption: set --mean-tokens",
        "seconds": f"{sum(done.seconds.values()):,.0f} a step: {listed(done.seconds)}",
        "hours": f"{done.hours:,.{1 if done.hours >= 1 else 3}f} for {done.steps} steps, by "
        "arithmetic and not measured: "
        f"{done.used:.0%} of {speed} (set --utilization){share}",
        "disk": f"{sum(done.disk.values()) / 1e9:,.0f} GB: {listed(done.disk, 1e9)}",
        "host": f"{estimate.memory.host / GIB:,.0f} GiB of memory a process, while it loads or "
        "writes a checkpoint",
    }
    if (sequences := estimate.memory.sequences) is not None:
        facts["cache"] = f"{sequences} of the longest sequences at a time on a GPU"
    return facts
