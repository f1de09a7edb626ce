"""What papers report, beside what the runs at the edge show."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

from benchmarks.harness import wilson
from benchmarks.stability import analysis, tables
from benchmarks.stability.conditions import BASE
from benchmarks.stability.results import Results, Runs

YES, NO, OPEN = "yes", "no", "not decided"
STAPO, STARE, LP_REG = "arXiv:2602.15620", "arXiv:2606.19236", "arXiv:2510.03222"

Shown = tuple[str, str]
"""What was measured, and whether it agrees."""


def table(found: Results) -> str:
    """One row for each claim; a claim about a condition that has no run is left out.

    A share of runs agrees if its 95% interval is above 1/2, and does not if it is below. A
    difference agrees if its 95% interval is above 0, and does not if it is below.
    """
    runs = found.of(found.edge)
    rows = []
    for claim, source, needed, measure in CLAIMS:
        if all(name in runs for name in needed):
            measured, agrees = measure(runs)
            rows.append([claim, source, measured, agrees])
    return tables.table(["claim", "source", "measured at the edge", "agrees"], rows)


def beside_half(low: float, high: float, half: float = 0.5) -> str:
    """Whether an interval is above a value."""
    return YES if low > half else NO if high < half else OPEN


def course(name: str, wanted: str) -> Callable[[Runs], Shown]:
    """How many runs of a condition have a course of the entropy."""

    def measure(runs: Runs) -> Shown:
        each = runs[name].values()
        hits = sum(run.entropy_course == wanted for run in each)
        low, high = wilson(hits, len(each))
        text = f"{name}: {hits} of {len(each)} runs [{low:.2f}, {high:.2f}]"
        if BASE in runs:
            base = sum(run.entropy_course == wanted for run in runs[BASE].values())
            text += f"; {BASE}: {base} of {len(runs[BASE])}"
            if low > 0.5 and wilson(base, len(runs[BASE]))[1] > low:
                return text, f"{OPEN}: {BASE} is no different"
        return text, beside_half(low, high)

    return measure


def better(name: str, base: str) -> Callable[[Runs], Shown]:
    """Whether a condition has a higher last accuracy than another one."""

    def measure(runs: Runs) -> Shown:
        each = analysis.compare(name, base, runs)
        if each is None or each.interval is None:
            return "too few pairs", OPEN
        return tables.signed_difference(each), beside_half(*each.interval, half=0)

    return measure


def stays(name: str) -> Callable[[Runs], Shown]:
    """How many runs of a condition did not collapse."""

    def measure(runs: Runs) -> Shown:
        each = runs[name].values()
        stable = sum(not run.collapsed for run in each)
        low, high = wilson(stable, len(each))
        text = f"{stable} of {len(each)} runs did not collapse [{low:.2f}, {high:.2f}]"
        return text, beside_half(low, high)

    return measure


def gate(runs: Runs) -> Shown:
    """Whether STARE's gate opens and closes."""
    each = [run.shares["weight on"] or 0.0 for run in runs["stare"].values() if run.shares]
    share = mean(each) if each else 0.0
    text = f"its weight is on in {share:.1%} of the steps"
    return text, YES if 0.01 < share < 0.99 else NO


def protecting(runs: Runs) -> Shown:
    """How often Lp-Reg's penalty acts."""
    each = [run.shares["protecting"] or 0.0 for run in runs["lp-reg"].values() if run.shares]
    return f"its penalty acts in {mean(each) if each else 0.0:.1%} of the steps", "–"


def touched(runs: Runs) -> Shown:
    """The share of the tokens that STAPO's rule drops."""
    share = mean(run.shares["touched"] or 0.0 for run in runs["stapo"].values() if run.shares)
    return f"{share:.3%} of the tokens", "–"


def spurious(runs: Runs) -> Shown:
    """Whether the tokens that STAPO's rule drops are spurious."""
    each = [run.counts for run in runs["stapo"].values() if run.counts]
    caught, judged, every = (
        sum(counts[key] for counts in each) for key in ("caught", "judged dropped", "spurious")
    )
    if not judged:
        return "the rule dropped no token of a right response", OPEN
    text = f"precision {caught / judged:.1%}, recall {caught / every:.1%}"
    if caught / judged <= 0.5:
        return text, NO
    return text, YES if caught / every > 0.5 else "these are, and most spurious tokens stay"


def concentration(runs: Runs) -> Shown:
    """The share of the gradient norm in the tokens with the largest norms."""
    each = [run.shares for run in runs["dapo-loss"].values() if run.shares]
    one, percent = (mean(x[key] or 0.0 for x in each) for key in ("largest token", "largest 1%"))
    return f"one token of about 780: {one:.0%} of the norm; 1% of the tokens: {percent:.0%}", "–"


PAIR = ("stapo", "20-entropy")
STABLE = "Lp-Reg is stable (its paper has one update per rollout)"
CLAIMS: list[tuple[str, str, tuple[str, ...], Callable[[Runs], Shown]]] = [
    ("the entropy of GRPO collapses", STAPO, ("grpo",), course("grpo", "collapsed")),
    ("that of 20-Entropy explodes", STAPO, ("20-entropy",), course("20-entropy", "exploded")),
    ("that of JustRL explodes", STAPO, ("justrl",), course("justrl", "exploded")),
    ("that of STAPO stays in a band", STAPO, ("stapo",), course("stapo", "between")),
    ("that of STARE stays in a band", STARE, ("stare",), course("stare", "between")),
    ("the gate of STARE opens and closes", STARE, ("stare",), gate),
    ("STAPO ends higher than GRPO", STAPO, ("stapo", "grpo"), better("stapo", "grpo")),
    ("STAPO ends higher than 20-Entropy", STAPO, PAIR, better(*PAIR)),
    ("STAPO ends higher than JustRL", STAPO, ("stapo", "justrl"), better("stapo", "justrl")),
    ("it matters which tokens STAPO drops", "–", ("stapo", "random"), better("stapo", "random")),
    ("STAPO drops about 0.01% of the tokens", STAPO, ("stapo",), touched),
    ("the tokens that it drops are spurious", STAPO, ("stapo",), spurious),
    ("few tokens carry much of the gradient", STAPO, ("dapo-loss",), concentration),
    ("Lp-Reg protects unlikely tokens", LP_REG, ("lp-reg",), protecting),
    (STABLE, LP_REG, ("lp-reg",), stays("lp-reg")),
]
"""(claim, source, conditions that it needs, measurement)."""
