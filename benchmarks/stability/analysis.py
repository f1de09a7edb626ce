"""The numbers of a run, and the statistics of runs with paired seeds, as the plan defines them.

The plan is the docstring of `benchmarks.stability`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy import optimize, stats

from benchmarks import driver
from benchmarks.stability import regimes
from benchmarks.stability.runs import whole_metrics
from rlobj.base.errors import RunError
from rlobj.config.run_folder import read_metrics

COMPARISONS = 7
"""The primary comparisons, which Holm's correction and the wide intervals count."""
LEVEL = 0.95
FIRST_STEPS, LAST_STEPS = 10, 20
"""Steps at the beginning and at the end of a run whose means are compared."""
EXACT_PAIRS = 20
"""Pairs up to which the sign-flip test goes through all 2^n signs."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Outcome:
    """The numbers of one run that ended.

    Attributes:
        seed: of the run.
        failed: how its process ended; "" if it finished.
        accuracies: held-out accuracies, the first one before training.
        last, best, area: of the accuracies; 0 in a failed run.
        degraded, collapsed: whether last is below the first accuracy, and below half of it; both
            hold in a failed run.
        entropies: mean entropy of the policy in nats, one number for ten steps.
        entropy_first, entropy_last: its means over the first 10 and the last 20 steps.
        entropy_course: "collapsed", "exploded" or "between"; "" if it is not known.
        shares: means over the steps, such as the gradient's share of its largest token; `touched`
            is the share of the tokens that the rule touches.
        counts: sums over the steps, such as spurious tokens.
        made: CPU seconds, wall seconds and commit.
    """

    seed: int
    failed: str
    accuracies: Sequence[float]
    last: float = 0.0
    best: float = 0.0
    area: float = 0.0
    degraded: bool = True
    collapsed: bool = True
    entropies: Sequence[float | None] = ()
    entropy_first: float | None = None
    entropy_last: float | None = None
    entropy_course: str = ""
    shares: Mapping[str, float | None] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)


def outcome(folder: Path) -> Outcome | None:
    """The numbers of a run's folder; None if it has not ended, or if its metrics are not whole."""
    seed, state = int(folder.name), driver.ended(folder)
    if not state:
        return None
    lines = read_metrics(folder) if state == driver.FAILED else whole_metrics(folder)
    if lines is None:
        return None
    accuracies = [x["eval/accuracy"] for x in lines if x.get("eval/accuracy") is not None]
    if state == driver.FAILED:
        why = (folder / driver.FAILED).read_text("utf-8").strip()
        return Outcome(seed, why or "failed", accuracies)
    last = mean(accuracies[-regimes.LAST :])
    steps = [line for line in lines if line["step"] > 0]
    first_entropy, last_entropy, course = entropy_course(steps)
    return Outcome(
        seed,
        "",
        accuracies,
        last=last,
        best=max(accuracies),
        area=mean(accuracies[1:] or accuracies),
        degraded=regimes.degraded(accuracies),
        collapsed=last < accuracies[0] / 2,
        entropies=[average(steps[i : i + 10], "policy/entropy") for i in range(0, len(steps), 10)],
        entropy_first=first_entropy,
        entropy_last=last_entropy,
        entropy_course=course,
        shares=shares(steps),
        counts=counts(steps),
        made=facts(folder / driver.DONE),
    )


def facts(done: Path) -> dict[str, Any]:
    """What a finished run says about its making.

    Raises:
        RunError: the file is damaged.
    """
    try:
        made = json.loads(done.read_text("utf-8"))
    except ValueError:
        made = None
    wanted = {"cpu_seconds": 60.0, "wall_seconds": 61.0, "commit": "abc1234"}
    if not isinstance(made, dict) or not made.keys() >= wanted.keys():
        raise RunError(
            f"{done} is damaged: expected JSON such as {json.dumps(wanted)}. Delete {done.parent}; "
            "the command of the study trains this run again"
        )
    return made


def average(lines: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """The mean of a metric over the steps that have it; None without one."""
    values = [line[name] for line in lines if line.get(name) is not None]
    return mean(values) if values else None


def entropy_course(steps: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None, str]:
    """The mean entropies of the first and the last steps, in nats, and what became of it."""
    first = average(steps[:FIRST_STEPS], "policy/entropy")
    last = average(steps[-LAST_STEPS:], "policy/entropy")
    if first is None or last is None:
        return first, last, ""
    return (
        first,
        last,
        "collapsed" if last < first / 10 else "exploded" if last > first else "between",
    )


def shares(steps: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Means over the steps: who carries the gradient, and which tokens the rule touches."""
    named = {
        "largest token": "gradient/top_0.01pct",
        "largest 1%": "gradient/top_1pct",
        "clipped": "objective/clip_fraction",
    }
    tokens = total(steps, "tokens/step")
    return {
        **{title: average(steps, name) for title, name in named.items()},
        "touched": mean(map(touched, steps)) if steps else None,
        "protecting": average(
            [{"on": float((x.get("loss/proxy_kl") or 0) > 0)} for x in steps], "on"
        ),
        "weight on": average([{"on": float(x.get("controller/W") != 1.0)} for x in steps], "on"),
        "scored": 1 - total(steps, "tokens/unscored") / tokens if tokens else None,
    }


def touched(step: Mapping[str, Any]) -> float:
    """The share of a step's tokens that the rule drops, gives another weight or protects.

    The last two are those that a cut selects within tokens of one sign of the advantage. Some of
    them may fail another condition of the rule, as in lp-reg, so the share is an upper bound.
    """
    if dropped := step.get("tokens/dropped"):
        return dropped / step["tokens/step"]
    if step.get("controller/W") == 1.0:
        return 0.0
    for name, share in step.items():
        sign = re.search(r"^selected/.*within=advantage ([<>]) 0", name)
        if sign and share is not None:
            side = "positive" if sign[1] == ">" else "negative"
            return share * (step.get(f"advantage/{side}_share") or 0.0)
    return 0.0


def counts(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Sums over the steps. Tokens of right responses are the tokens times the share of these
    responses, as if right and wrong ones had the same length. `judged` counts the steps whose
    tokens a judge of the task looked at."""

    def right(part: Sequence[Mapping[str, Any]]) -> float:
        each = (x.get("tokens/step", 0.0) * (x.get("reward/accuracy") or 0.0) for x in part)
        return sum(each)

    first, last = steps[:FIRST_STEPS], steps[-LAST_STEPS:]
    return {
        "tokens": total(steps, "tokens/step"),
        "dropped": total(steps, "tokens/dropped"),
        "judged dropped": total(steps, "spurious/dropped"),
        "caught": total(steps, "spurious/caught"),
        "spurious": total(steps, "spurious/tokens"),
        "judged": sum(line.get("spurious/tokens") is not None for line in steps),
        "spurious first": total(first, "spurious/tokens"),
        "spurious last": total(last, "spurious/tokens"),
        "right first": right(first),
        "right last": right(last),
    }


def total(lines: Iterable[Mapping[str, Any]], name: str) -> float:
    """The sum of a metric over the steps that have it."""
    return sum(line.get(name) or 0.0 for line in lines)


# Statistics.


def t_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """The t interval of a mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    far = float(stats.t.ppf((1 + level) / 2, len(values) - 1))
    half = far * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half


def sign_flip(differences: Sequence[float]) -> float:
    """Two-sided p-value of the sign-flip test of a mean.

    Under the null hypothesis each difference is as likely as its negative. The p-value is the
    share of all 2^n signs with a mean at least as far from 0; above 20 pairs, that of 99,999
    random signs.
    """
    if len(differences) > EXACT_PAIRS:
        found = stats.permutation_test(
            (differences,), np.mean, permutation_type="samples", n_resamples=99_999, rng=0
        )
        return float(found.pvalue)
    sums = np.zeros(1)
    for size in np.abs(differences):
        sums = np.concatenate([sums + size, sums - size])
    rounding = 1e-12 * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= abs(sum(differences)) - rounding))


def holm(p_values: Mapping[Any, float], of: int = COMPARISONS) -> dict[Any, float]:
    """Holm's corrected p-values. A comparison of `of` that is missing counts as not rejected."""
    corrected, largest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda each: each[1])):
        largest = max(largest, min(1.0, p * (of - rank)))
        corrected[name] = largest
    return corrected


def mcnemar(ours: Sequence[bool], base: Sequence[bool]) -> float:
    """Two-sided p-value of McNemar's exact test of paired shares."""
    only_ours = sum(a and not b for a, b in zip(ours, base, strict=True))
    only_base = sum(b and not a for a, b in zip(ours, base, strict=True))
    if not only_ours + only_base:
        return 1.0
    return float(stats.binomtest(only_ours, only_ours + only_base).pvalue)


def power(difference: float, spread: float, pairs: int, alpha: float) -> float:
    """Probability that the paired t test, two-sided, finds a difference.

    Args:
        difference: the true mean difference.
        spread: standard deviation of the paired differences.
        pairs: their number.
        alpha: its level.
    """
    far = stats.f.ppf(1 - alpha, 1, pairs - 1)  # t² has an F distribution
    shift = max(difference**2 * pairs / spread**2, 1e-9)  # scipy is wrong at 0
    return float(stats.ncf.sf(far, 1, pairs - 1, shift))


def detectable(spread: float, pairs: int, alpha: float, wanted: float = 0.8) -> float:
    """The smallest difference that the test finds with the wanted probability.

    The arguments are those of `power`. The sign-flip test has about the power of the t test.
    """
    high = spread / math.sqrt(pairs)
    while power(high, spread, pairs, alpha) < wanted:
        high *= 1.5
    found = optimize.brentq(lambda d: power(d, spread, pairs, alpha) - wanted, 0.0, high)
    return float(found)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Comparison:
    """A condition against another one with the same seeds; differences of last accuracies.

    Attributes:
        name, base: the conditions.
        seeds: those that ended in both.
        difference: mean of condition minus base.
        spread: standard deviation of the differences.
        interval, wide: t intervals of 95% and of 1 - 0.05/7.
        p: of the sign-flip test.
        degraded, collapsed: p-values of McNemar's test.
    """

    name: str
    base: str
    seeds: Sequence[int]
    difference: float
    spread: float | None
    interval: Interval | None
    wide: Interval | None
    p: float
    degraded: float
    collapsed: float


def compare(name: str, base: str, runs: Mapping[str, Mapping[int, Outcome]]) -> Comparison | None:
    """Compare two conditions of a setting; None without a seed that ended in both.

    Args:
        name: the condition.
        base: the one that it is compared with.
        runs: runs that ended, by condition and seed.
    """
    seeds = sorted(runs.get(name, {}).keys() & runs.get(base, {}).keys())
    if not seeds:
        return None
    ours, others = ([runs[each][seed] for seed in seeds] for each in (name, base))
    differences = [a.last - b.last for a, b in zip(ours, others, strict=True)]
    shares = {
        key: mcnemar([getattr(x, key) for x in ours], [getattr(x, key) for x in others])
        for key in ("degraded", "collapsed")
    }
    return Comparison(
        name,
        base,
        seeds,
        mean(differences),
        stdev(differences) if len(seeds) > 1 else None,
        t_interval(differences),
        t_interval(differences, 1 - (1 - LEVEL) / COMPARISONS),
        sign_flip(differences),
        **shares,
    )
