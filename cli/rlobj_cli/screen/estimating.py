"""The table of an estimate, with tokens and hours below it. Imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from rlobj.base.memory import physical_memory
from rlobj.models.checking import check_model
from rlobj.reporting.terminal import facts_grid, say, table
from rlobj.settings.run_config import RunConfig
from rlobj.sizing.choosing import choose_settings, settled
from rlobj.sizing.fitting import Choice, choose, ways
from rlobj.sizing.memory import MARGIN, PHASES, Memory, micro_batch
from rlobj.sizing.memory import estimate as estimate_memory
from rlobj.sizing.sizes import GIB, Cards, Size, own_card
from rlobj.sizing.workload import DECODING, USED, Work, work
from rlobj_cli.screen.console import plain_value, typed


@dataclass(frozen=True)
class Estimated:
    """What an estimate found.

    Attributes:
        config: the run, with the choices.
        size: of its model.
        ranks: number of processes.
        memory: of a process.
        cards: the GPUs; None = this machine's CPU.
        work: tokens and hours.
        choices: the settings that were open.
    """

    config: RunConfig
    size: Size
    ranks: int
    memory: Memory
    cards: Cards | None
    work: Work
    choices: Sequence[Choice]


def estimated(
    config: RunConfig, size: Size, ranks: int, cards: Cards | None, choices: Sequence[Choice] = ()
) -> Estimated:
    """The estimate of a run with its settings, on some GPUs or on the CPU."""
    strategy, card = config.training.strategy, None if cards is None else cards.bytes
    memory = estimate_memory(config, size, strategy, ranks, card)
    done = work(config, size, memory, cards)
    return Estimated(config, size, ranks, memory, cards, done, choices)


def estimate_of(config: RunConfig, gpus: str | None) -> Estimated:
    """The estimate of a run after `choose`, on some GPUs or on this machine's CPU ("cpu").

    None = the GPUs of this machine, or its CPU if it has none.

    Raises:
        ConfigError: `gpus` is something else, there is no such model, or its
            config.json cannot be read or has a number that no model has.
    """
    check_model(config, tokenizers=False)
    size = Size.named(config.model, local=True)
    cards: Cards | None = None
    if gpus is None and (card := own_card()):
        cards = Cards(torch.cuda.device_count(), card)
    elif gpus is not None and gpus.lower() != "cpu":
        cards = Cards.parse(gpus)
    chosen = choose_settings(config, size, None) if cards is None else choose(config, size, cards)
    config = settled(config, chosen)
    return estimated(config, size, 1 if cards is None else cards.count, cards, chosen)


def show_estimate(console: Console, estimate: Estimated) -> None:
    """Print the memory of a process by part and phase; below it tokens, hours, choices."""
    memory, cards = estimate.memory, estimate.cards
    unit, name = (GIB, "GiB") if max(memory.needed) >= GIB else (2**20, "MiB")
    batch = micro_batch(estimate.config, estimate.size, estimate.ranks, memory.card)
    strategy = estimate.config.training.strategy
    title = f"memory of a process, {name}\n({strategy}, processes: {estimate.ranks},\n"
    shown = table(f"{title}micro-batch: up to {batch.tokens:,} tokens)", right=PHASES)
    for part, sizes in memory.parts.items():
        if any(sizes):
            shown.add_row(part, *(f"{size / unit:.1f}" if size else "" for size in sizes))
    shown.add_section()
    shown.add_row("together", *(f"{size / unit:.1f}" for size in memory.needed))
    most, room = physical_memory() / estimate.ranks, "this machine, for each process"
    if cards is not None:
        most, room = (1 - MARGIN) * cards.bytes, f"the GPU, less {MARGIN:.0%} for CUDA and NCCL"
    shown.add_row(room, *[f"{most / unit:.1f}"] * 4)
    console.print("", shown, sep="\n")
    if cards is None and max(memory.needed) > most:
        text = "It does not fit. Use a smaller training.micro_batch_tokens, sampling.batch_tokens "
        say(console, Text(f"{text}or model", style="red"))
    console.print(facts_grid(_facts(estimate)), "", sep="\n")


def _facts(estimate: Estimated) -> dict[str, str]:
    """Model, tokens and hours in words, with what they assume."""
    done, cards, memory = estimate.work, estimate.cards, estimate.memory
    name = Path(str(estimate.config.model.name or "embedded")).name
    facts = {
        "model": f"{name}, {estimate.size.total / 1e6:,.1f} million parameters",
        "tokens": f"{done.tokens / 1e6:.2f} million a step; {done.responses:,} responses; assumed: "
        f"{done.mean:,.0f} tokens of a response and {done.prompt:,} of a prompt",
    }
    if cards is not None:
        facts["model"] += f", on {cards.count} x {cards.bytes / GIB:.4g} GiB ({cards.kind})"
        parts = ", ".join(f"{name} {s:,.0f}" for name, s in done.seconds.items() if s >= 0.5)
        facts["hours"] = (
            f"{done.hours:,.{1 if done.hours >= 1 else 3}f} for {done.steps} steps of "
            f"{done.step:,.0f} seconds ({parts or 'below one'}), "
            f"by arithmetic and not measured: {USED:.0%} of {cards.speed.flops / 1e12:.0f} "
            f"TFLOP/s, {DECODING:.0%} of {cards.speed.bandwidth / 1e12:.2f} TB/s"
        )
    facts["host"] = f"{memory.host / GIB:,.0f} GiB of memory a process, to load or write weights"
    made = [choice for choice in estimate.choices if choice.reason]
    lines = [f"{one.setting}={plain_value(one.written())}: {one.reason}" for one in made]
    return facts | ({"chosen": "\n".join(lines)} if lines else {})


def show_ways(console: Console, estimate: Estimated) -> None:
    """Print the changes with which a run fits that does not."""
    config, cards = estimate.config, estimate.cards
    if cards is None or estimate.memory.fits:
        return
    say(console, Text("It does not fit. It fits with one of these:", style="red"))
    fitting = ways(config, estimate.size, config.training.strategy, cards)
    for way, memory in fitting:
        line = typed(way, {"processes": "--processes"})
        console.print(Text(f"  {line}: {max(memory.needed) / GIB:.0f} GiB"), soft_wrap=True)
    if not fitting:
        console.print(Text("  a smaller model, or more or larger GPUs"), soft_wrap=True)
