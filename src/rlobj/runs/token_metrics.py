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
QUADRANTS = ("positive_likely", "positive_surprising", "negative_likely", "negative_surprising")


@torch.no_grad()
def token_metrics(observed: ObservedUpdate, comm: Comm) -> dict[str, float]:
    """The metrics of one update; shares, means and quantiles of no tokens are absent.

    Args:
        observed: of this rank.
        comm: the process group.
    """
    mine = _Tokens.of(observed)
    counts = comm.sum(mine.counts).tolist()
    tokens, scored, above, below, judged, wrong, dropped, caught, *fired = counts
    effects: dict[str, int] = dict(zip(EFFECTS, fired, strict=True))
    quantiles = _smallest(mine.entropy, [math.ceil(q * scored) for q in QUANTILES], comm)
    signs, sixes = 4 + (mine.advantages < 0).long(), torch.full_like(mine.quadrants, 6)
    summed = [(mine.norms, mine.quadrants), (mine.advantages, signs), (mine.entropy_change, sixes)]
    values, units = (torch.cat(parts) for parts in zip(*summed, strict=True))
    *carried, up, down, predicted = statistics.exact_sum_by(values, units, 7, comm).tolist()
    shares = zip(QUADRANTS, carried, strict=True)
    fractions = {
        **{f"gradient/{name}": (share, sum(carried)) for name, share in shares},
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
        counts: numbers of tokens: all, scored, A > 0, A < 0; judged, spurious, judged and dropped,
            spurious and dropped; and by effect, int [13].
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
        marks = observed.spurious[rows]
        touched = [clauses.touched(effect)[rows] for effect in EFFECTS]
        judged, wrong, dropped, below = ~marks.isnan(), marks == 1, touched[0], advantages < 0
        masks = (advantages > 0, below, judged, wrong, judged & dropped, wrong & dropped, *touched)
        sizes = torch.tensor([len(rows), len(scored)], device=rows.device)
        fired = {"dropped", *(effect for effect, _ in clauses.causes)}
        return cls(
            effects=[effect for effect in EFFECTS if effect in fired],
            counts=torch.cat([sizes, torch.stack(masks).sum(1)]),
            advantages=advantages,
            entropy=entropy[scored].float(),
            norms=norms[weighed],
            quadrants=(2 * below + (sensitivity < 0).long())[weighed],
            entropy_change=change[weighed],
        )


def _smallest(values: Tensor, ranks: Sequence[int], comm: Comm) -> list[float]:
    """The k-th smallest of float32 values over all ranks, for each k from 1."""
    if comm.size == 1:  # sorting once is faster than counting digits for each k
        ordered = values.sort().values
        return [float(ordered[k - 1]) if len(ordered) else 0.0 for k in ranks]
    keys = statistics.order_keys(values).repeat(len(ranks))
    unit = torch.arange(len(ranks), device=values.device).repeat_interleave(len(values))
    places = torch.tensor(ranks, device=values.device)
    smallest = statistics.kth_smallest_by(keys, places, unit, comm)
    return statistics.from_keys(smallest.int()).tolist()
