"""Statistics of repeated samples: n problems, k samples each, c_i of them correct."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["pass_at_k", "standard_errors"]


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is right, 1 − C(n − c, k)/C(n, k).

    Args:
        samples: n decided samples of the problem.
        correct: c of them right.
        k: 1 ≤ k ≤ n.

    Source: Chen et al. 2021, arXiv:2107.03374 eq. 1.

    Example:
        >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 4)
        (0.25, 1.0)
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples per problem, got {samples}")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def standard_errors(correct: Sequence[int], samples: Sequence[int]) -> tuple[float, float]:
    """Two standard errors of the mean accuracy, for two questions.

    sampling: this model on these very problems, sqrt(Σ p_i(1 − p_i)/(k_i − 1)) / n.
    problems: this model on problems like these, sd(p_i)/sqrt(n) (Miller, arXiv:2411.00640).

    Returns:
        (sampling, problems); nan where there is too little to tell.
    """
    shares = [c / k for c, k in zip(correct, samples, strict=True)]
    n = len(shares)
    inner = [p * (1 - p) / (k - 1) for p, k in zip(shares, samples, strict=True) if k > 1]
    sampling = math.sqrt(sum(inner)) / n if len(inner) == n and n else math.nan
    if n < 2:
        return sampling, math.nan
    mean = sum(shares) / n
    return sampling, math.sqrt(sum((p - mean) ** 2 for p in shares) / (n - 1) / n)
