"""`rlobj eval`: how often a policy is right, and how sure that number is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from rlobj.samplers import Sampler
    from rlobj.training.policy import Policy
    from rlobj_cli.results import Result
    from rlobj_cli.targets import Benchmark, Target

__all__ = ["evaluate"]

WHAT = "What is asked"
HOW = "How responses are drawn"
BLOCK = 64
"""Problems sampled at a time."""
SMALL = 10_000_000
"""Parameters below which one CPU thread is faster than two that wait for each other."""


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run (its newest checkpoint), a model folder, a hub id, or: embedded.",
        ),
    ],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="TASK|FILE",
            help="Problems: built-in tasks, files, folders or hub ids, separated by commas. "
            "Default: the run's own held-out problems.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            "--samples", "-n", min=1, metavar="N", help="Per problem.", rich_help_panel=WHAT
        ),
    ] = 4,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, metavar="N", help="Only the first so many.", rich_help_panel=WHAT
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            metavar="TEXT",
            help="Text around a problem, with {prompt} in it.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward",
            metavar="math|exact",
            help="Grader. Default: the run's; exact for built-in tasks; math for files.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            "-t",
            min=0,
            metavar="T",
            help="0 = greedy. Default: the run's, or 1.",
            rich_help_panel=HOW,
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", max=1, metavar="P", help="Nucleus.", rich_help_panel=HOW),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            min=1,
            metavar="N",
            help="Longest response. Default: the run's, or 1024.",
            rich_help_panel=HOW,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", min=0, metavar="N", help="Equal seeds, equal samples.", rich_help_panel=HOW
        ),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Write results.json and samples.jsonl."),
    ] = None,
) -> None:
    """Sample a policy's answers to problems and say how often they are right.

    [bold]Examples[/bold]

    \b  rlobj eval embedded --on addition -n 8
      rlobj eval runs/stapo-20260101-120000      its own held-out problems
      rlobj eval Qwen/Qwen3-1.7B-Base --on problems.jsonl -n 32
    """
    from rich.console import Console

    from rlobj_cli.screen import calm_libraries, loading

    console = Console()
    with loading(console):
        from rlobj_cli.results import prepare_folder, show_table, write_results
        from rlobj_cli.targets import find_target

    if out is not None:
        prepare_folder(out)
    options = {
        "--limit": ("data.limit", limit),
        "--template": ("data.template", template),
        "--reward": ("rewards.kind", reward),
        "--temperature": ("evaluation.temperature", temperature),
        "--top-p": ("evaluation.top_p", top_p),
        "--max-tokens": ("sampling.max_tokens", max_tokens),
        "-n": ("evaluation.samples", samples),
        "--seed": ("seed", seed),
    }
    target = find_target(model, on, {k: v for k, v in options.items() if v[1] is not None})
    calm_libraries(console)
    results = _evaluate_all(console, target)
    show_table(console, target, results)
    if out is not None:
        write_results(out, target, results)
        console.print(f"wrote {out}/results.json and {out}/samples.jsonl", markup=False)


def _evaluate_all(console: Console, target: Target) -> list[Result]:
    import torch
    from rich.text import Text

    from rlobj.samplers import TransformersSampler
    from rlobj.training.policy import arithmetic, load_policy
    from rlobj_cli.screen import facts_grid

    first = target.benchmarks[0].config
    console.print(Text.assemble(("rlobj eval", "bold"), "  ", (target.name, "bold cyan")))
    with _Bar(console, "first use: supervised start of the embedded policy") as bar:
        source = target.locate(lambda done, total, _: bar.move(done, total))
    policy = load_policy(first.model, first.data, source)
    parameters = sum(p.numel() for p in policy.model.parameters())
    gpu = torch.cuda.is_available()
    if not gpu and parameters < SMALL:
        torch.set_num_threads(1)
    device = "cuda" if gpu else f"cpu, {torch.get_num_threads()} thread(s)"
    console.print(facts_grid({"policy": f"{source}, {parameters:,} parameters", "device": device}))
    policy.model.to("cuda" if gpu else "cpu")
    sampler = TransformersSampler(
        policy.model,
        policy.tokenizer,
        batch_tokens=first.sampling.batch_tokens,
        autocast=arithmetic(first.model),
    )
    return [_evaluate_one(console, policy, sampler, each) for each in target.benchmarks]


def _evaluate_one(
    console: Console, policy: Policy, sampler: Sampler, benchmark: Benchmark
) -> Result:
    import dataclasses
    import time

    from rlobj.evaluation import evaluate as run_evaluation
    from rlobj.evaluation import problem_seeds
    from rlobj_cli.results import Result

    config, start = benchmark.config, time.perf_counter()
    asked = dataclasses.replace(policy, template=config.data.template)
    total = len(benchmark.problems)
    with config.rewards.open() as grader, _Bar(console, benchmark.name) as bar:
        bar.move(0, total)
        evaluation = run_evaluation(
            sampler,
            asked.encode,
            benchmark.problems,
            grader,
            benchmark.settings,
            count=config.evaluation.samples,
            seeds=problem_seeds(config.seed, total),
            block=BLOCK,
            progress=lambda done: bar.move(done, total),
        )
    return Result(benchmark, evaluation, time.perf_counter() - start)


class _Bar:
    """A bar that appears with its first move, on a terminal only. A context manager."""

    def __init__(self, console: Console, name: str) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._name = name
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_interactive,
        )

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def move(self, done: int, total: int) -> None:
        """So many are done."""
        if not self._bar.task_ids:
            self._bar.add_task(self._name, total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)
