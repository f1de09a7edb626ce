"""Precision and recall of the objectives' rules against planted tokens.

All right responses are valid derivations besides the planted tokens, so that every planted token
and no other token of a right response is spurious.
"""

from __future__ import annotations

from torch import Tensor

from benchmarks.stability.conditions import CERTAIN, POSITIVE, RARE, objective
from rlobj import Objective, TokenBatch

CONDITIONS = {"A > 0": POSITIVE, "rare": RARE, "certain": CERTAIN}
"""STAPO's three conditions: a positive advantage, π < 0.002, and the 80% with the lowest H."""
SETS = {
    "stapo": " & ".join(CONDITIONS.values()),
    **CONDITIONS,
    "A > 0, rare": f"{POSITIVE} & {RARE}",
    "A > 0, certain": f"{POSITIVE} & {CERTAIN}",
    "rare, certain": f"{RARE} & {CERTAIN}",
}
TAU_P = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
TAU_H = (0.4, 0.6, 0.8, 0.9, 1.0)


def selected(rule: str, table: TokenBatch) -> Tensor:
    """The tokens that a rule selects, bool [N]."""
    return touched(Objective().drop(rule), table)


def touched(of: Objective, table: TokenBatch) -> Tensor:
    """The tokens that an objective drops, reweights, switches or penalises, bool [N]."""
    clauses = of.plan([table], of.observe([table]), clauses=True).clauses
    assert clauses is not None
    return clauses.codes >= 0


def found(chosen: Tensor, table: TokenBatch) -> dict[str, float]:
    """How some tokens agree with the planted ones: precision = caught / tokens.

    Returns:
        tokens: number of chosen tokens.
        caught: planted ones among them; recall = caught / planted.
        planted: number of planted tokens.
    """
    planted = table.columns["planted"] > 0
    counts = {"tokens": chosen, "caught": chosen & planted, "planted": planted}
    return {name: float(rows.sum()) for name, rows in counts.items()}


def judged(table: TokenBatch) -> dict[str, dict[str, float]]:
    """Precision and recall of the sets of tokens that the objectives treat differently.

    The weights of AR have no edge. Its row has as many tokens with the smallest weights as tokens
    were planted.
    """
    count = int((table.columns["planted"] > 0).sum())
    sets = {name: selected(rule, table) for name, rule in SETS.items()}
    for name in ("20-entropy", "stare", "lp-reg", "clip-cov", "kl-cov", "random"):
        sets[name] = touched(objective(name), table)
    sets["ar"] = selected(f"(0.2 * old_prob + 0.8).bottom({count / len(table)})", table)
    return {name: found(chosen, table) for name, chosen in sets.items()}


def swept(table: TokenBatch) -> list[dict[str, float]]:
    """STAPO's rule with other thresholds: precision and recall for each τ_p and τ_h."""
    return [
        {"tau_p": p, "tau_h": h}
        | found(selected(f"{POSITIVE} & (prob < {p}) & entropy.bottom({h})", table), table)
        for p in TAU_P
        for h in TAU_H
    ]
