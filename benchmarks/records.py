"""What recording costs: steps of the same run with and without it, by turns in one process.

Three runs with the same seed make the same steps: with the record and tables; without them; and
without anything that they and the token metrics are computed from (`metrics and record`: columns,
clauses, metrics, record and tables). The default task is the embedded policy's, with everything a
step does. The large policy's responses are random tokens that cost no sampling, so that the share
is that of scoring, updates and writing alone.

CPU seconds are of a step at one thread. What is added: medians over the ratios of steps that did
the same work by turns, without the first step, and ratios of the sums, which include the rare steps
that write files.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from benchmarks.harness import Table, asked, cpu_seconds, main
from benchmarks.made_up import PROMPT, RIGHT, RandomSampler, lognormal_lengths, make_policy
from rlobj.settings.building import compose
from rlobj.settings.run_config import RunConfig
from rlobj.training.loop import opening
from rlobj.training.loop.inputs import CallerInputs
from rlobj.training.loop.step import run_step
from rlobj.training.new_run import prepared
from rlobj.training.resolving import RunRequest

VOCABULARY, GROUP, LENGTH, WIDTH, LAYERS = 16384, 8, 64, 256, 4
RECORDED, OFF, BARE = "recorded", "not recorded", "not observed"
CASES = {
    "default task, stapo": ("stapo", False),
    "default task, 20-entropy": ("20-entropy", False),
    "large policy, stapo": ("stapo", True),
}
"""Preset, and whether the policy is the large one."""


def settings(variant: str, large: bool, groups: int, steps: int) -> dict[str, Any]:
    """The settings of one of the runs."""
    off: dict[str, Any] = {"records": 0, "tables_every": 0}
    found: dict[str, Any] = {
        "training": {"steps": steps},
        "evaluation": {"every": 0},
        "checkpoint": {"every": 0},
        "output": {} if variant == RECORDED else off,
    }
    if large:
        found["data"] = {"template": "{prompt}"}
        found["sampling"] = {
            "prompts_per_step": groups,
            "group_size": GROUP,
            "max_tokens": 16 * LENGTH,
            "max_logprob_gap": 1e9,
        }
        found["training"] |= {"learning_rate": 1e-12, "updates_per_step": 1}
    return found


def open_run(
    preset: str, layer: dict[str, Any], large: bool, groups: int
) -> tuple[RunConfig, CallerInputs]:
    """The configuration of a run, and what is handed in."""
    if not large:
        return prepared(compose(preset, [("benchmark", layer)])), CallerInputs()
    lengths = lognormal_lengths(groups * GROUP, LENGTH, 0.5)
    sampler = RandomSampler(lengths, GROUP, VOCABULARY)
    rows = [{"prompt": f"{i:0{PROMPT}d}", "answer": RIGHT} for i in range(groups)]
    model = make_policy(VOCABULARY, WIDTH, LAYERS)
    inputs = CallerInputs(model, sampler.tokenizer, rows, None, "exact", sampler)
    return prepared(compose(preset, [*inputs.layers(), ("benchmark", layer)])), inputs


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Inside, steps do as without records and token metrics."""
    loop = "rlobj.training.loop"
    with (
        mock.patch(f"{loop}.learner._ALL", {"entropy": True}),
        mock.patch(f"{loop}.learner.CURRENT", ("logprobs", "entropy")),
        mock.patch("rlobj.runs.loss_metrics.POLICY", ("logprobs",)),
        mock.patch(f"{loop}.learner.Learner._observed", return_value=None),
        mock.patch(f"{loop}.learner.token_metrics", return_value={}),
        mock.patch(f"{loop}.learner.Learner.entropy_change", return_value={}),
        mock.patch("rlobj.objectives.planning._find_clauses", return_value=None),
    ):
        yield


def answer(case: str, groups: int, steps: int) -> dict[str, list[float]]:
    """CPU seconds of each step of each run; the runs take turns."""
    preset, large = CASES[case]
    variants = (RECORDED, OFF, BARE)
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        runs = {}
        for variant in variants:
            layer = settings(variant, large, groups, steps)
            config, inputs = open_run(preset, layer, large, groups)
            request = RunRequest(config, Path(folder) / variant)
            runs[variant] = stack.enter_context(opening.open_run(request, inputs))
        runs[BARE].pipeline.collector.judge = None
        for step in range(steps):
            for variant in variants[step % 3 :] + variants[: step % 3]:
                with unobserved() if variant == BARE else contextlib.nullcontext():
                    seconds[variant].append(cpu_seconds(lambda v=variant: run_step(runs[v])))
    return seconds


def measure(quick: bool, rounds: int) -> Table:
    """Every case: seconds of a step, and what is added to it."""
    steps, groups = (20, 4) if quick else (60, 8)
    rows = []
    questions = {case: {"case": case, "groups": groups, "steps": steps} for case in CASES}
    for case, found in asked("benchmarks.records", questions, rounds).items():
        joined = {name: [s for each in found for s in each[name][1:]] for name in found[0]}
        rows.append({"case": case, **compared(joined)})
    return Table(
        "records",
        {
            "case": ("run", ""),
            "seconds": ("CPU s a step", ".3g"),
            "record": ("record, median", ".1%"),
            "record_sum": ("record, sum", ".1%"),
            "all": ("metrics and record, median", ".1%"),
            "all_sum": ("metrics and record, sum", ".1%"),
        },
        rows,
        {"steps": steps, "groups of the large policy": groups, "rounds": rounds},
        labels=("case",),
        bars=("record_sum", "all_sum"),
    )


def compared(seconds: dict[str, list[float]]) -> dict[str, float]:
    """The row of a case."""

    def added(base: str) -> tuple[float, float]:
        pairs = zip(seconds[RECORDED], seconds[base], strict=True)
        return median(a / b for a, b in pairs) - 1, sum(seconds[RECORDED]) / sum(seconds[base]) - 1

    found = {"seconds": median(seconds[OFF])}
    found["record"], found["record_sum"] = added(OFF)
    found["all"], found["all_sum"] = added(BARE)
    return found


if __name__ == "__main__":
    main(measure, answer)
