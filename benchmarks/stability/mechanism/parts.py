"""The measurements of the page: each part returns rows for JSON, means over seeds.

All seeds, rates and sizes are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

import torch

from benchmarks.stability.conditions import BASE, GROUPS, RARE, objective
from benchmarks.stability.mechanism import entropies, gradients, growth, rules, updates
from benchmarks.stability.mechanism.batches import (
    POLICIES,
    Policy,
    plant,
    roll_out,
    sampled,
    table_of,
)
from rlobj.records.metrics import QUADRANTS

RATES = (1e-4, 1e-3, 1e-2)
SEEDS, FEW, TWO = range(8), range(4), range(2)
STEP_RATE = 1e-4
"""Learning rate of the single update."""
LOGIT_STEP, PARAMETER_STEP = 1e-3, 1e-3
"""Largest change of a logit, and length of a step of the parameters."""
NETWORK = ("own", "all", "first_order")
"""What is measured of a quadrant in a network."""
Rows = list[dict[str, Any]]


def by_policy(
    measure: Callable[[Policy], Iterable[dict[str, Any]]], dtype: torch.dtype = torch.float32
) -> Rows:
    """The rows of each policy, which they name first."""
    return [
        {"policy": kind, **row} for kind in POLICIES for row in measure(Policy.load(kind, dtype))
    ]


def carried(policy: Policy) -> Iterator[dict[str, Any]]:
    """What planted tokens carry of the gradient, by rate."""
    rollouts = [roll_out(policy, seed) for seed in SEEDS]
    for rate in RATES:
        found = [
            gradients.carried(policy, rollouts[seed], objective(BASE), rate, seed) for seed in SEEDS
        ]
        each = ("sum", "parameters", "random")
        yield means(found) | {f"{name}_each": [row[name] for row in found] for name in each}


def bounds(policy: Policy) -> Rows:
    """STAPO's bounds, token by token, on the loss of `dapo-loss`."""
    rollout = plant(roll_out(policy, 0, prompts=16), 1e-2, 0)
    found = gradients.bounds(policy, rollout, objective(BASE))
    lower, exact, measured = (found[name] for name in ("lower", "exact", "measured"))
    rare = found["prob"] < 0.002
    return [
        {
            "tokens": len(exact),
            "error": float((measured - exact).abs().max()),
            "slack": float((measured - lower).min()),
            "vacuous": float((lower <= 0).double().mean()),
            "tightness": float((lower / exact)[found["planted"]].mean()),
            "tightness_rare": float((lower / exact)[rare].mean()),
            "rare": int(rare.sum()),
            "largest": float(measured.max().sqrt()),
            "median": float(measured.median().sqrt()),
        }
    ]


def judged(policy: Policy) -> Iterator[dict[str, Any]]:
    """Precision and recall of the sets that objectives treat differently, by rate."""
    for rate in RATES[1:]:
        found = [rules.judged(table) for table in _tables(policy, rate)]
        for name in found[0]:
            yield {"rate": rate, "set": name, **pooled([f[name] for f in found])}


def compared(policy: Policy) -> Iterator[dict[str, Any]]:
    """Planted tokens and the spurious tokens that the policy samples: how likely, and STAPO's rule.

    `rare` is the share with π < 0.002. Rollouts without planted tokens are as sampled.
    """
    for source in ("planted", "sampled"):
        tables = _tables(policy, 1e-2 if source == "planted" else None)
        marks = [table.columns["planted"] > 0 for table in tables]
        logprobs = torch.cat([t.logprobs[m] for t, m in zip(tables, marks, strict=True)])
        rare = [rules.selected(RARE, t)[m] for t, m in zip(tables, marks, strict=True)]
        of = objective("stapo")
        yield {
            "source": source,
            "count": len(logprobs),
            "share": mean(float(m.double().mean()) for m in marks),
            "prob": float(logprobs.mean().exp()),
            "rare": float(torch.cat(rare).double().mean()),
            **pooled(rules.found(rules.touched(of, table), table) for table in tables),
        }


def swept(policy: Policy) -> Iterator[dict[str, Any]]:
    """Precision and recall of STAPO's rule by its thresholds."""
    tables = _tables(policy, 1e-2)
    for each in zip(*(rules.swept(table) for table in tables), strict=True):
        yield {"tau_p": each[0]["tau_p"], "tau_h": each[0]["tau_h"], **pooled(each)}


def update(policy: Policy) -> Iterator[dict[str, Any]]:
    """What one update does to the planted tokens, by objective."""
    cases = (updates.Case.make(policy, 1e-2, seed, STEP_RATE) for seed in FEW)
    every = [updates.compared(case) for case in cases]
    for name in updates.STUDIED:
        found = [each[name] for each in every]
        yield {"condition": name, **means(found), "each": [f["planted"] for f in found]}


def grown() -> Rows:
    """Short runs with planted tokens."""
    asked = [(BASE, 0.0), (BASE, 1e-3)]
    asked += [(name, 1e-2) for name in (*GROUPS["core"], growth.PERFECT)]
    return [growth.grown(condition, rate, seed) for seed in TWO for condition, rate in asked]


def quadrants(policy: Policy) -> Iterator[dict[str, Any]]:
    """STARE's quadrants with independent logits and with shared parameters."""
    rollouts = [plant(roll_out(policy, seed, prompts=16), 1e-2, seed) for seed in SEEDS]
    own = [entropies.own_logits(policy, each, LOGIT_STEP) for each in rollouts]
    shared = [entropies.shared(policy, each, PARAMETER_STEP) for each in rollouts]
    influences = (entropies.influences(policy, each, PARAMETER_STEP) for each in rollouts)
    tokens = means([entropies.agreement(each) for each in influences])
    for name in QUADRANTS:
        logits, network = [each[name] for each in own], [each[name] for each in shared]
        right = network[0]["predicted"] > 0
        signs = {f"{key}_signs": sum((x[key] > 0) == right for x in network) for key in NETWORK}
        yield {
            "quadrant": name,
            "tokens": mean(each["tokens"] for each in logits),
            "predicted": mean(each["predicted"] for each in logits),
            "independent": mean(each["measured"] for each in logits),
            "error": max(each["error"] for each in logits),
            "batches": len(network),
            **{key: mean(each[key] for each in network) for key in NETWORK},
            **signs,
            "agree": tokens[name],
            "agree_weighted": tokens[f"{name}, weighted"],
            "correlation": tokens["correlation"],
            "agree_all": tokens["all"],
        }


PARTS: Mapping[str, Callable[[], Rows]] = {
    "carried": partial(by_policy, carried),
    "bounds": partial(by_policy, bounds, torch.float64),
    "sources": partial(by_policy, compared),
    "rules": partial(by_policy, judged),
    "thresholds": partial(by_policy, swept),
    "update": partial(by_policy, update),
    "quadrants": partial(by_policy, quadrants, torch.float64),
    "growth": grown,
}
"""Name -> what measures it."""


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number over rows."""
    return {name: mean(row[name] for row in rows) for name in rows[0]}


def pooled(rows: Iterable[Mapping[str, float]]) -> dict[str, float | None]:
    """Precision and recall of all rows together; None = no token was chosen."""
    rows = list(rows)
    tokens, caught = (sum(row[name] for row in rows) for name in ("tokens", "caught"))
    planted = sum(row["planted"] for row in rows)
    return {
        "tokens": tokens / len(rows),
        "precision": caught / tokens if tokens else None,
        "recall": caught / planted,
    }


def _tables(policy: Policy, rate: float | None) -> list[Any]:
    """Four rollouts with planted tokens; None = as the policy samples them."""
    rollouts = (
        sampled(policy, seed) if rate is None else plant(roll_out(policy, seed), rate, seed)
        for seed in FEW
    )
    base = objective(BASE)
    return [base.with_advantages([table_of(policy, each)])[0] for each in rollouts]
