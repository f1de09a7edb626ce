"""What each saving of the training step is worth, and that the update is the same without it.

A rollout of random responses is trained on by a small random policy: scoring pass, advantages,
plan, one update. Each saving is undone alone, and at last all together.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from rlobj.benchmarking import processes
from rlobj.benchmarking.rollouts import (
    PROMPT,
    RolloutTrainer,
    configure,
    lognormal_lengths,
    make_policy,
    make_rollout,
    measured,
)
from rlobj.benchmarking.tables import Cell, Column, Finding, Progress, Table, silent
from rlobj.objectives.tokens import TokenBatch
from rlobj.scoring import PolicyScorer, micro_batches
from rlobj.training.loop.learner import Learner
from rlobj.training.rollouts.sharding import Share, spread

__all__ = ["CASES", "VARIANTS", "child", "draw", "imbalance", "measure", "to_table"]

MODULE = "rlobj.benchmarking.step"
VOCABULARY, GROUP, DEAD, SIGMA, AT_ONCE = 1024, 8, 0.3, 0.8, 8
USEFUL, ROUNDING, BALANCE = 0.97, 1e-5, 1.01
"""Aimed at."""
OURS, NONE = "rlobj", "none of them"
SHOWN = ("scoring", "planning", "forward", "backward", "optimizer", "other")
"""The phases of a step that is given its rollout."""


# Savings undone.


class _ScoredFirst(Learner):
    """Makes a scoring pass although nothing reads it."""

    def score(self, share: Share) -> TokenBatch:
        self.logprobs(share.sequences)
        return super().score(share)


class _ProxyApart(Learner):
    """Computes the min-p proxy in a forward pass of its own."""

    def score(self, share: Share) -> TokenBatch:
        with torch.no_grad():
            scores = self._forward(self.scorer, share.sequences, min_p=self._min_p)
        self._scored -= {"proxy_logprobs"}
        table = share.table.replace(proxy_logprobs=scores["proxy_logprobs"])
        return super().score(replace(share, table=table))


class _Unshared(Learner):
    """Scores without a graph, even where one forward pass could serve rules and loss."""

    def _shares_forward(self, sequences: Any) -> bool:
        return False


class _Fewest(Learner):
    """Micro-batches as few as the budget allows, sorted by length."""

    def _parts(self, sequences: Any) -> list[list[int]]:
        lengths = [len(prompt) + len(response) for prompt, response in sequences]
        budget = self.config.training.micro_batch_tokens
        return micro_batches(lengths, budget, packed=self._packed) or [[]]


class _Unsorted(Learner):
    """Micro-batches of so many responses in the order of sampling."""

    def _parts(self, sequences: Any) -> list[list[int]]:
        every = list(range(len(sequences)))
        return [every[i : i + AT_ONCE] for i in every[::AT_ONCE]] or [[]]


class _Nothing(_Unsorted, _ScoredFirst):
    pass


class _Padded(PolicyScorer):
    """Pads every micro-batch to the rollout's longest sequence."""

    def __init__(self, model: Any, longest: int) -> None:
        super().__init__(model, packed=False)
        self.longest = longest

    def collate(self, sequences: Any, device: Any = "cpu") -> Any:
        widest = ((0,) * self.longest, ())
        return tuple(x[:-1] for x in super().collate([*sequences, widest], device) if x is not None)


@dataclass(frozen=True)
class Variant:
    """A way to train on a rollout.

    Attributes:
        training: settings of the run.
        learner: the learner's class.
        scorer: makes the policy's scorer, told the rollout's longest sequence in tokens.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    learner: type[Learner] = Learner
    scorer: Callable[[Any, int], PolicyScorer] = lambda model, _: PolicyScorer(model)


_ALL = {"skip_inactive": False}
VARIANTS: dict[str, Variant] = {
    OURS: Variant(),
    "idle tokens trained": Variant(_ALL),
    "scored though unread": Variant(learner=_ScoredFirst),
    "forward not shared": Variant(learner=_Unshared),
    "proxy in a pass of its own": Variant(learner=_ProxyApart),
    "fewest micro-batches": Variant(learner=_Fewest),
    "not sorted by length": Variant(learner=_Unsorted),
    "padded to the longest": Variant(learner=_Unsorted, scorer=_Padded),
    NONE: Variant(_ALL, _Nothing, _Padded),
    "rlobj, packed": Variant(scorer=lambda model, _: PolicyScorer(model, packed=True)),
    "rlobj, recomputing": Variant({"gradient_checkpointing": True}),
}
"""By name; the two last are choices of the user's, no savings undone."""

_PADDING = ("fewest micro-batches", "not sorted by length", "padded to the longest")


@dataclass(frozen=True)
class Case:
    """A step to train.

    Attributes:
        preset: the objective.
        variants: those that differ in it.
        sigma: of the lengths' logarithm.
        dead: share of groups without signal.
        whole: whether the rollout is one micro-batch.
    """

    preset: str
    variants: tuple[str, ...]
    sigma: float = SIGMA
    dead: float = DEAD
    whole: bool = False


CASES: dict[str, Case] = {
    "grpo": Case(
        "grpo",
        (
            *(OURS, "scored though unread", "idle tokens trained", *_PADDING, NONE),
            *("rlobj, packed", "rlobj, recomputing"),
        ),
    ),
    "grpo, equal lengths": Case(
        "grpo", (OURS, "scored though unread", "idle tokens trained", NONE), sigma=0.0
    ),
    "stapo": Case("stapo", (OURS, "idle tokens trained", "padded to the longest")),
    "stapo, one micro-batch": Case("stapo", (OURS, "forward not shared"), 0.0, 0.0, whole=True),
    "lp-reg": Case("lp-reg", (OURS, "proxy in a pass of its own", "idle tokens trained")),
    "20-entropy": Case("20-entropy", (OURS, "idle tokens trained")),
}
"""By what the table calls them; lengths are skewed where nothing else is said."""


def _sizes(case: Case, quick: bool) -> tuple[int, int, int]:
    """Responses, their median length, tokens of a micro-batch."""
    if case.whole:
        return (16, 64, 1 << 20)
    return (128, 32, 384) if quick else (256, 48, 512)


def child(question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The measurements of a case, a row for each variant.

    Args:
        question: `case`, its name; `rounds`; `quick`.
    """
    processes.return_freed_memory()
    case = CASES[question["case"]]
    responses, length, budget = _sizes(case, question["quick"])
    lengths = lognormal_lengths(responses, length, case.sigma)
    rollout = make_rollout(lengths, group=GROUP, vocabulary=VOCABULARY, dead=case.dead)
    few = make_rollout(lengths[:GROUP], group=GROUP, vocabulary=VOCABULARY)
    rows: dict[str, dict[str, Any]] = {name: {"all": []} for name in case.variants}
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in case.variants}
    with contextlib.ExitStack() as stack:
        trainers = {}
        for name in case.variants:
            variant = VARIANTS[name]
            trainers[name] = RolloutTrainer(
                configure(case.preset, micro_batch_tokens=budget, **variant.training),
                make_policy(VOCABULARY),
                lambda model, make=variant.scorer: make(model, PROMPT + max(lengths)),
                variant.learner,
            )
            stack.enter_context(trainers[name]).train(few)
            rows[name]["mib"] = processes.peak_above(partial(trainers[name].train, rollout))
        processes.keep_freed_memory()
        for _ in range(question["rounds"]):  # in turn: what disturbs one round disturbs them all
            for name, trainer in trainers.items():
                seconds, metrics = measured(partial(trainer.train, rollout))
                rows[name]["all"].append(seconds)
                steps[name].append(metrics)
    return [
        {"step": question["case"], "training": name, **row, **_facts(steps[name])}
        for name, row in rows.items()
    ]


def _facts(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What the metrics of some rounds of one step say: all but the times are alike in them."""
    times = {phase: median(each[f"time/{phase}"] for each in rounds) for phase in SHOWN}
    return {
        "useful": rounds[0]["tokens/useful_share"],
        "left_out": rounds[0]["tokens/skipped_share"],
        "gradient": rounds[0]["train/grad_norm"],
        **{f"{phase}_share": seconds / sum(times.values()) for phase, seconds in times.items()},
    }


def measure(*, quick: bool, rounds: int, progress: Progress = silent) -> Table:
    """What each saving is worth, for steps of some presets.

    Args:
        quick: smaller rollouts.
        rounds: how often each step is trained.
        progress: told of each case.
    """
    rows = []
    for done, name in enumerate(CASES):
        progress(name, done, len(CASES))
        question = {"case": name, "rounds": rounds, "quick": quick}
        rows += processes.ask(MODULE, question)
    responses, length, budget = _sizes(CASES["grpo"], quick)
    settings = {
        "responses": responses,
        "median length": length,
        "sigma": SIGMA,
        "groups without signal": f"{DEAD:.0%}",
        "tokens of a micro-batch": budget,
        "responses of an unsorted one": AT_ONCE,
        "V": VOCABULARY,
        "rounds": rounds,
    }
    return to_table(rows, settings)


def to_table(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Cell]) -> Table:
    """The table of some measurements, with what they say.

    Args:
        rows: of `child`, case after case, the one of rlobj first in each.
        settings: what was measured with.
    """
    ours: Mapping[str, Any] = {}
    cells: list[dict[str, Cell]] = []
    for row in rows:
        ours = row if row["training"] == OURS else ours
        ratios = [a / b for a, b in zip(row["all"], ours["all"], strict=True)]
        more = {"seconds": median(row["all"]), "ratio": median(ratios)}
        cells.append({key: value for key, value in {**row, **more}.items() if key != "all"})
    return Table(
        name="step",
        title="The training step: what each saving is worth",
        reading="CPU seconds of one rollout's training at one thread, the same with a saving "
        "undone and what that costs, and peak memory above what lies there between steps. Useful: "
        "real tokens over padded ones. Left out: tokens that updates had no need of.",
        columns=(
            Column("step", "step"),
            Column("training", "training"),
            Column("seconds", "CPU s", "seconds"),
            Column("ratio", "over rlobj", "ratio"),
            Column("mib", "MiB", "mib"),
            Column("useful", "useful", "share"),
            Column("left_out", "left out", "share"),
            Column("gradient", "gradient norm", "number"),
        ),
        rows=tuple(cells),
        findings=_findings(cells),
        settings=tuple(settings.items()),
    )


def _findings(rows: Sequence[Mapping[str, Any]]) -> tuple[Finding, ...]:
    by = {(row["step"], row["training"]): row for row in rows}
    grpo = {name: by["grpo", name] for name in CASES["grpo"].variants}
    longest, unsorted = grpo["padded to the longest"], grpo["not sorted by length"]
    none, useful = grpo[NONE], grpo[OURS]["useful"]
    norms = {row["step"]: row["gradient"] for row in rows if row["training"] == OURS}
    apart = max(abs(row["gradient"] / norms[row["step"]] - 1) for row in rows)
    told = (
        f"Without any saving a step of grpo takes {none['ratio']:.2f} times the CPU time and "
        f"{none['mib'] / grpo[OURS]['mib']:.2f} times the memory on skewed lengths, "
        f"{by['grpo, equal lengths', NONE]['ratio']:.2f} times the time on equal ones.",
        f"Lp-Reg's proxy from the scoring pass: a pass of its own would take "
        f"{by['lp-reg', 'proxy in a pass of its own']['ratio']:.2f} times the CPU time. One "
        "forward pass for rules and loss: two would take "
        f"{by['stapo, one micro-batch', 'forward not shared']['ratio']:.2f} times.",
        f"Recomputing activations: {grpo['rlobj, recomputing']['ratio']:.2f} times the CPU time "
        f"for {grpo['rlobj, recomputing']['mib'] / grpo[OURS]['mib']:.2f} times the memory.",
        *(_phases(by[name, OURS]) for name in ("grpo", "stapo")),
    )
    few = (
        f"Useful tokens on skewed lengths: {useful:.1%} (aimed at: at least {USEFUL:.0%}); "
        f"not sorted {unsorted['useful']:.1%}, padded to the longest {longest['useful']:.1%}."
    )
    same = (
        f"The same update: gradient norms differ by at most {apart:.0e} of their size between "
        f"all ways to train a step (aimed at: rounding, {ROUNDING:.0e})."
    )
    aims = (Finding(few, useful >= USEFUL), Finding(same, apart <= ROUNDING), _balance())
    return (*aims, *map(Finding, told))


def imbalance(costs: Sequence[int], owners: Sequence[int], ranks: int) -> float:
    """Tokens of the rank with the most over the mean rank's."""
    loads = [0] * ranks
    for cost, owner in zip(costs, owners, strict=True):
        loads[owner] += cost
    return max(loads) * ranks / sum(loads)


def _balance() -> Finding:
    costs = [PROMPT + length for length in lognormal_lengths(512, 96, SIGMA)]
    sizes = (2, 4, 8, 16)
    dealt = [imbalance(costs, spread(costs, [False] * len(costs), n), n) for n in sizes]
    turns = [imbalance(costs, [i % n for i in range(len(costs))], n) for n in sizes]
    return Finding(
        "Tokens of the fullest rank over the mean one, 512 responses on 2, 4, 8, 16 ranks: "
        f"{', '.join(f'{x:.4f}' for x in dealt)} (aimed at: at most {BALANCE}); dealt in turn "
        f"{', '.join(f'{x:.2f}' for x in turns)}.",
        max(dealt) <= BALANCE,
    )


def _phases(row: Mapping[str, Any]) -> str:
    parts = [f"{phase} {row[f'{phase}_share']:.1%}" for phase in SHOWN]
    return f"Where the CPU time of a step of {row['step']} goes: {', '.join(parts)}."


_COLOURS = dict(
    zip(SHOWN, ("#56B4E9", "#F0E442", "#0072B2", "#E69F00", "#009E73", "#BBBBBB"), strict=True)
)
"""Of Okabe and Ito's palette."""


def draw(figure: Any, table: Table) -> None:
    """Each way to train beside rlobj's, the bars split by the phases of the step."""
    axes = figure.subplots()
    place, places, names, titles = 0.0, [], [], []
    for row in table.rows:
        if row["training"] == OURS:
            place += 1.1
            titles.append((place - 0.8, row["step"]))
        start, ratio = 0.0, float(row["ratio"] or 0)
        for phase in SHOWN:
            part = ratio * float(row[f"{phase}_share"] or 0)
            axes.barh(place, part, left=start, height=0.75, color=_COLOURS[phase], lw=0)
            start += part
        label = f"{ratio:.2f}x  {float(row['mib'] or 0):,.0f} MiB"
        axes.text(start + 0.05, place, label, va="center", size="small")
        places.append(place)
        names.append(row["training"])
        place += 1
    for height, title in titles:
        axes.text(0.0, height, title, weight="bold", size="small", va="center")
    axes.set_yticks(places, names, size="small")
    axes.invert_yaxis()
    axes.axvline(1, color="#444444", lw=0.8, ls=":")
    axes.set_xlim(0, 1.15 * max(float(row["ratio"] or 0) for row in table.rows))
    axes.set_xlabel("CPU time over rlobj's own step, by phase; peak memory")
    axes.spines[["top", "right"]].set_visible(False)
    handles = [axes.barh(0, 0, color=_COLOURS[phase], label=phase) for phase in SHOWN]
    axes.legend(handles=handles, frameon=False, loc="lower right", fontsize="small", ncols=2)
    axes.set_title(table.title, loc="left")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(json.dumps(child(json.loads(sys.argv[1]))))
