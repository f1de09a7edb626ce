"""Statistics of repeated samples: n problems, k_i samples each, c_i of them right.

A number over n problems has two uncertainties. *sampling*: the same problems, sampled again.
*problems*: other problems like these. With the 30 problems of a competition the second one is much
larger, and intervals here are intervals of the second kind: they resample whole problems, and never
the n·k samples as if they were independent (Miller 2024, arXiv:2411.00640).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import stdev, variance
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
RESAMPLES = 9_999
"""Of problems, and of sign vectors if there are more."""
SEED = 0
"""Of resamples: equal values give equal intervals and p-values."""


class Interval(NamedTuple):
    """95% interval of a mean over problems like these; nan if there are too few values."""

    low: float
    high: float
    method: str


@dataclass(frozen=True)
class Estimate:
    """The mean of one value per problem, with its uncertainty.

    Attributes:
        values: one for each problem that has the value; pass@k needs k samples.
        shares: they are shares in [0, 1], and not rewards.
        stderr_sampling: standard error of the mean, of this model on these very problems.
    """

    values: tuple[float, ...] = field(repr=False)
    shares: bool = True
    stderr_sampling: float = math.nan

    @property
    def mean(self) -> float:
        """The mean; nan without values."""
        return mean(self.values)

    @property
    def stderr(self) -> float:
        """sd/sqrt(n): standard error on problems like these; nan for fewer than two."""
        n = len(self.values)
        return stdev(self.values) / math.sqrt(n) if n > 1 else math.nan

    @cached_property
    def interval(self) -> Interval:
        """See `share_interval`; of rewards `bootstrap_interval`."""
        return (share_interval if self.shares else bootstrap_interval)(self.values)


class MacroAverage(NamedTuple):
    """The mean of several benchmarks' accuracies or rewards; each counts once, whatever its size.

    Attributes:
        mean: of avg@n, or of the mean reward.
        shares: it is of accuracies, and not of rewards.
        stderr: sqrt(Σ se²)/B, for problems like these: the benchmarks are independent.
        stderr_sampling: the same for these very problems.
        interval: at 95%, for problems like these.
    """

    mean: float
    shares: bool
    stderr: float
    stderr_sampling: float
    interval: Interval


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of P(one of k samples is right): 1 − C(n − c, k)/C(n, k).

    Args:
        samples: n samples of the problem.
        correct: c of them right.
        k: 1 ≤ k ≤ n.

    Source: Chen et al. 2021, arXiv:2107.03374 eq. 1. Exact integers until the last division.

    Example:
        >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 4)
        (0.25, 1.0)
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples per problem, got {samples}")
    ways = math.comb(samples, k)
    return (ways - math.comb(samples - correct, k)) / ways


def sampling_error(rows: Sequence[Sequence[float]]) -> float:
    """Standard error of the mean over problems of the mean of their k_i values, for these problems.

    sqrt(Σ s_i²/k_i) / n with the variance s_i² of the values of problem i; nan if a problem has one
    value. For verdicts it is sqrt(Σ p_i(1 − p_i)/(k_i − 1)) / n (Miller, arXiv:2411.00640).
    """
    inner = [variance(row) / len(row) if len(row) > 1 else math.nan for row in rows]
    return math.sqrt(sum(inner)) / len(inner) if inner else math.nan


def macro_average(estimates: Sequence[Estimate]) -> MacroAverage:
    """The mean of the benchmarks' accuracies, or of their mean rewards; nan of both together.

    Its interval comes from those of the benchmarks: each half-width, divided by their number, is
    added in quadrature, the lower ones and the upper ones by themselves (MOVER: Zou & Donner 2008).

    Args:
        estimates: of each benchmark, at least one.
    """
    size, shares = len(estimates), estimates[0].shares
    alike = all(estimate.shares == shares for estimate in estimates)
    total = sum(estimate.mean for estimate in estimates) / size if alike else math.nan

    def combined(parts: Iterable[float]) -> float:
        return math.sqrt(sum(part**2 for part in parts)) / size

    return MacroAverage(
        total,
        shares,
        combined(estimate.stderr for estimate in estimates),
        combined(estimate.stderr_sampling for estimate in estimates),
        Interval(
            total - combined(estimate.mean - estimate.interval.low for estimate in estimates),
            total + combined(estimate.interval.high - estimate.mean for estimate in estimates),
            ", ".join(dict.fromkeys(estimate.interval.method for estimate in estimates)),
        ),
    )


def share_interval(values: Sequence[float]) -> Interval:
    """95% interval for the mean of shares in [0, 1], one for each problem.

    If every value is 0 or 1 (one sample per problem, or pass@n of n samples), they are a single
    proportion, and the interval is Wilson's (arXiv:2503.01747). It is Wilson's also if all values
    are equal, because resampling equal values shows no uncertainty. Then it reaches from that of
    the whole number of problems below their sum to that of the one above: it is too wide, not too
    narrow. Otherwise it is the bootstrap's.

    Example:
        >>> low, high, method = share_interval([1.0] * 30)
        >>> round(low, 3), high, method
        (0.886, 1.0, 'Wilson')
    """
    from scipy.stats import binomtest

    if not values:
        return Interval(math.nan, math.nan, "none")
    if len(set(values)) > 1 and not set(values) <= {0, 1}:
        return bootstrap_interval(values)
    total = round(math.fsum(values), 9)
    low, high = (
        binomtest(successes, len(values)).proportion_ci(LEVEL, "wilson")
        for successes in (math.floor(total), math.ceil(total))
    )
    return Interval(float(low.low), float(high.high), "Wilson")


def bootstrap_interval(values: Sequence[float]) -> Interval:
    """95% interval for the mean: `scipy.stats.bootstrap` over problems, BCa.

    It does not depend on the order of the values. BCa shifts the percentiles by the bias of the
    resamples and by the skewness of the values (Efron 1987), so that the interval is longer on one
    side if many shares are near 0 or 1. At n = 30 and Beta(0.15, 1.5) problems, 95% intervals
    contain the mean 92% of the time with BCa, and 90% of the time with plain percentiles or
    Student's t. If nearly all problems are at 0, it is about 85%.

    Args:
        values: one per problem, any range.

    Returns:
        nan if the values are all equal.
    """
    from scipy.stats import bootstrap

    ordered = np.sort(values)
    if not len(ordered) or np.ptp(ordered) < 1e-12:
        return Interval(math.nan, math.nan, "none")
    low, high = bootstrap(
        [ordered],
        np.mean,
        n_resamples=RESAMPLES,
        batch=1000,
        confidence_level=LEVEL,
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Interval(float(low), float(high), "bootstrap over problems (BCa)")


def paired_p_value(differences: Sequence[float]) -> float:
    """Two-sided `scipy.stats.permutation_test` of "both models are equally good", by sign flips.

    If they are, they can be exchanged on each problem, so that d_i may as well have the other sign:
    p is the share of sign vectors s with |Σ s_i d_i| ≥ |Σ d_i|. All are counted for 12 or fewer
    d_i ≠ 0, else 9,999 are drawn, and the observed one is one more (arXiv:1603.05766). With one
    sample per problem it is McNemar's test. No difference of five problems or fewer is significant.

    The assumption is that d_i is symmetric around 0; a mean of 0 is not enough. +0.1 on 90% of 30
    problems and −0.9 on 10% have p < 0.05 in 19%.

    Args:
        differences: d_i, at least one.
    """
    from scipy.stats import permutation_test

    moved = sorted(filter(None, differences))
    if not moved:
        return 1.0
    return float(
        permutation_test(
            [[*moved, 0.0]],  # it wants two or more
            np.sum,
            permutation_type="samples",
            n_resamples=RESAMPLES,
            batch=1000,
            rng=np.random.default_rng(SEED),
        ).pvalue
    )


def mean(values: Sequence[float]) -> float:
    """The mean; nan without values."""
    return sum(values) / len(values) if values else math.nan
