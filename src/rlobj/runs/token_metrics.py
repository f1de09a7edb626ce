"""The metrics of an update's tokens: who carries the gradient, and what it does to the entropy.

They are over the tokens of decided responses that are in the update's phase, on all ranks. They are
the same to the bit for any number of ranks and any order of the tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlobj.objectives import functional, statistics
from rlobj.objectives.plan import EFFECTS
from rlobj.objectives.statistics import Comm
from rlobj.runs.observed import POLICY, ObservedUpdate

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
TOPS = (0.0001, 0.001, 0.01)
QUADRANTS = ("positive_likely", "positive_surprising", "negative_likely", "negative_surprising")
DECADES = 6


@torch.no_grad()
def token_metrics(observed: ObservedUpdate, comm: Comm) -> dict[str, float]:
    """The metrics of one update; shares, means and quantiles of no tokens are absent.

    Args:
        observed: of this rank.
        comm: the process group.
    """
    mine = _Tokens.of(observed)
    tokens, scored, weighed, *others = comm.sum(mine.counts).tolist()
    (above, below, judged, wrong, dropped, caught), others = others[:6], others[6:]
    effects: dict[str, int] = dict(zip(EFFECTS, others, strict=False))
    decades = others[len(EFFECTS) :]
    tops = [math.ceil(share * weighed) for share in TOPS]
    levels = [math.ceil(q * scored) for q in QUANTILES]
    ordered = _order_statistics(
        [(mine.norms, [weighed - k + 1 for k in tops]), (mine.entropy, levels)], comm
    )
    cuts, quantiles = ordered[: len(tops)], ordered[len(tops) :]
    signs, sixes = 4 + (mine.advantages < 0).long(), torch.full_like(mine.quadrants, 6)
    summed = [(mine.norms, mine.quadrants), (mine.advantages, signs), (mine.entropy_change, sixes)]
    for unit, cut in enumerate(cuts, 7):
        excess = mine.norms[mine.norms > cut].double() - cut
        summed.append((excess, torch.full_like(excess, unit, dtype=torch.int64)))
    values, units = (torch.cat(parts) for parts in zip(*summed, strict=True))
    sums = statistics.exact_sum_by(values, units, 10, comm).tolist()
    carried, (up, down, predicted), over = sums[:4], sums[4:7], sums[7:]
    shares: dict[str, float] = dict(zip(QUADRANTS, carried, strict=True))
    for share, k, cut, rest in zip(TOPS, tops, cuts, over, strict=True):
        shares[f"top_{100 * share:g}pct"] = rest + k * cut  # Σ of the k largest
    fractions = {
        **{f"gradient/{name}": (share, sum(carried)) for name, share in shares.items()},
        **{f"prob/decade_{i}": (count, scored) for i, count in enumerate(decades)},
        "advantage/positive_share": (above, tokens),
        "advantage/negative_share": (below, tokens),
        "advantage/positive_mean": (up, above),
        "advantage/negative_mean": (down, below),
    }
    spurious = {
        "spurious/tokens": float(wrong),
        "spurious/share": wrong / max(tokens, 1),
        "spurious/caught": float(caught),
        "spurious/dropped": float(dropped),
    }
    named = zip(QUANTILES, quantiles, strict=True)
    return {
        **{name: value / total for name, (value, total) in fractions.items() if total},
        **({f"entropy/q{100 * q:02.0f}": value for q, value in named} if scored else {}),
        **({"entropy/predicted_change": predicted} if sum(carried) else {}),
        **{f"tokens/{name}": float(effects[name]) for name in mine.effects},
        "tokens/touched": float(sum(effects.values())),
        "tokens/unscored": float(tokens - scored),
        **(spurious if judged else {}),
    }


@dataclass(frozen=True)
class _Tokens:
    """What is summed and ordered of one rank's tokens.

    Attributes:
        effects: those that the objective can have, and `dropped`.
        counts: numbers of tokens: all, scored, with a norm, A > 0, A < 0; judged, spurious, judged
            and dropped, spurious and dropped; by effect; and scored ones by decade of π, int [20].
        advantages: A of all n tokens, [n].
        entropy: H of the scored tokens, nats.
        norms: |m·ω·A/Z|·sqrt(1 − 2π + Σ π²), [m]; 0 also for a token without m·ω·A that was not
            scored. Others that were not scored are left out.
        quadrants: the place in QUADRANTS of these tokens, int [m].
        entropy_change: −(m·ω·A/Z)·s of these tokens, [m].
    """

    effects: Sequence[str]
    counts: Tensor
    advantages: Tensor
    entropy: Tensor
    norms: Tensor
    quadrants: Tensor
    entropy_change: Tensor

    @classmethod
    def of(cls, observed: ObservedUpdate) -> "_Tokens":
        clauses = observed.plan.asked_clauses
        rows = clauses.in_phase.nonzero()[:, 0]
        columns = (getattr(observed, name).detach()[rows].double() for name in POLICY)
        logprobs, entropy, collision, sensitivity = columns
        advantages = observed.plan.advantages[0][rows].double()
        weights = observed.plan.weights[0][rows].double() * advantages
        # In float32, the place of a token in a vector does not change the last bit of its norm.
        norms = functional.gradient_norm(logprobs, collision, weights).float()
        norms = norms.masked_fill(weights == 0, 0.0)
        change = (-weights * sensitivity).masked_fill(weights == 0, 0.0)
        scored = (~logprobs.isnan()).nonzero()[:, 0]
        weighed = (~norms.isnan()).nonzero()[:, 0]
        decades = (logprobs[scored] / -math.log(10)).floor().clamp(0, DECADES - 1).long()
        marks = observed.spurious[rows]
        touched = [clauses.touched(effect)[rows] for effect in EFFECTS]
        judged, wrong, dropped, below = ~marks.isnan(), marks == 1, touched[0], advantages < 0
        masks = (advantages > 0, below, judged, wrong, judged & dropped, wrong & dropped, *touched)
        sizes = torch.tensor([len(rows), len(scored), len(weighed)], device=rows.device)
        counts = (sizes, torch.stack(masks).sum(1), torch.bincount(decades, minlength=DECADES))
        fired = {"dropped", *(effect for effect, _ in clauses.causes)}
        return cls(
            effects=[effect for effect in EFFECTS if effect in fired],
            counts=torch.cat(counts),
            advantages=advantages,
            entropy=entropy[scored].float(),
            norms=norms[weighed],
            quadrants=(2 * below + (sensitivity < 0).long())[weighed],
            entropy_change=change[weighed],
        )


def _order_statistics(columns: Sequence[tuple[Tensor, Sequence[int]]], comm: Comm) -> list[float]:
    """The k-th smallest values of float32 columns over all ranks, one after another.

    Args:
        columns: the values, and each k from 1.
        comm: the process group.
    """
    if comm.size == 1:  # sorting once is faster than counting digits for each k
        ordered = [(values.sort().values, ranks) for values, ranks in columns]
        return [
            float(values[k - 1]) if len(values) else 0.0 for values, ranks in ordered for k in ranks
        ]
    keys = [(statistics.order_keys(values), ranks) for values, ranks in columns]
    every = [column for column, ranks in keys for _ in ranks]
    units = [torch.full_like(column, i, dtype=torch.int64) for i, column in enumerate(every)]
    unit = torch.cat(units)
    ranks = torch.tensor([k for _, ranks in columns for k in ranks], device=unit.device)
    smallest = statistics.kth_smallest_by(torch.cat(every), ranks, unit, comm)
    return statistics.from_keys(smallest.int()).tolist()
