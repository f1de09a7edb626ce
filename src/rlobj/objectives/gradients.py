"""Which responses and tokens of an update have a gradient: the others can be skipped.

Two words say what matters to an objective, and are used everywhere:

- `needs`: the TokenBatch columns that a term or a stage reads;
- "with gradient": the tokens or responses in which the loss may have a gradient. Responses without
  one can be left out of an update if all terms are `skippable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlobj.objectives.penalties import Penalty
from rlobj.objectives.plan import Plan
from rlobj.objectives.surrogates import Surrogate
from rlobj.objectives.tokens import TokenBatch


def _skippable(surrogate: Surrogate, penalties: Sequence[Penalty]) -> bool:
    """Whether all terms are skippable. Only a class's own body counts: a subclass has another
    equation."""
    terms = (*surrogate.parts(), *penalties)
    return all(vars(type(term)).get("skippable", False) for term in terms)


def responses_with_gradient(
    surrogate: Surrogate,
    penalties: Sequence[Penalty],
    table: TokenBatch,
    plan: Plan,
) -> Tensor:
    """Responses in which the loss may have a gradient, whatever their log-probs, bool [B].

    `plan` is the plan of this one table. The other responses can be left out of the forward and the
    backward pass; the plan's divisors count them already. A response has no gradient if both hold:

    - on each of its tokens m·ω is 0, or on each of its tokens A is 0;
    - on each of its tokens c_k is 0, for every penalty.

    If a term is not skippable, all responses count as having one.
    """
    if not _skippable(surrogate, penalties):
        return torch.ones_like(table.lengths, dtype=torch.bool)
    found = table.any_by_response(plan.weights[0] != 0)
    found = found & table.any_by_response(plan.advantages[0] != 0)
    for share in plan.penalties[0]:
        found = found | table.any_by_response(share != 0)
    return found


def tokens_with_gradient(
    surrogate: Surrogate,
    penalties: Sequence[Penalty],
    loss: Callable[[TokenBatch], Tensor],
    table: TokenBatch,
) -> Tensor:
    """Tokens in which the loss has a gradient at the table's log-probs and entropies, bool [N].

    These are fewer than the tokens of `responses_with_gradient`: tokens that a rule drops, that the
    surrogate clips or that are at the minimum of a penalty have no gradient. If a term is not
    skippable, all tokens count as having one.
    """
    if not _skippable(surrogate, penalties):
        return torch.ones_like(table.logprobs, dtype=torch.bool)
    leaves = {"logprobs": table.logprobs.detach().requires_grad_()}
    if table.entropy is not None:
        leaves["entropy"] = table.entropy.detach().requires_grad_()
    with torch.enable_grad():
        value = loss(table.replace(**leaves))
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return torch.stack([gradient != 0 for gradient in found if gradient is not None]).any(0)
