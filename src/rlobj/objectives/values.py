"""Values of an expression with the places where it has none, and functions of numbers.

Rules have three values: true, false and undefined. A number is undefined where its population is
empty (`entropy.mean(within=...)` of no token), and a comparison with it, too. As in SQL, `~` of an
undefined rule is undefined, undefined & false is false, and undefined | true is true. What is
undefined at the end selects nothing.

A result that is NaN or infinite, as 1 / 0, is undefined, too. It is an error if a weight, a
population or the decision of a rule depends on it.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

UNDEFINED, NOT_FINITE = 1, 2
EXACT_POWERS = (-2, -1, 0, 0.5, 1, 2, 3)
"""Exponents for which `torch.pow` multiplies, divides or takes a root."""


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """base ** exponent, the same at each place of a tensor.

    `torch.pow` rounds the last elements of a tensor, and of a thread's share of it, in another way
    than the others, except for these exponents. exp(y·log x) is computed in float64: in float32 it
    is wrong by several units of the last place, so that 10 ** 4 is not 10000.
    """
    if exponent.dim() == 0 and float(exponent) in EXACT_POWERS:
        return base.pow(float(exponent))
    wide = (exponent * base.double().abs().log()).exp().to(base.dtype)
    size = torch.where(exponent == 0, 1.0, wide)
    odd = torch.where(exponent.remainder(2) == 1, -size, size)
    negative = torch.where(exponent.remainder(1) == 0, odd, torch.nan)
    return torch.where(base < 0, negative, size)


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": power,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Values:
    """The values of an expression: [N], [T], [B] or 0-d by its level.

    Attributes:
        data: numbers, or true and false; a rule's data are False where they mean nothing.
        flaw: 0, or UNDEFINED, or NOT_FINITE where a number is NaN or infinite; None = 0 everywhere.
    """

    data: Tensor
    flaw: Tensor | None = None

    @property
    def undefined(self) -> Tensor | None:
        """Where the data mean nothing; None = nowhere."""
        return None if self.flaw is None else self.flaw > 0

    def defined(self, mask: Tensor) -> Tensor:
        """The members of a mask that have a value."""
        return mask if self.flaw is None else mask & (self.flaw == 0)

    def __invert__(self) -> "Values":
        return Values(self.defined(~self.data), self.flaw)

    def __or__(self, other: "Values") -> "Values":
        data, flaw = self.data | other.data, worst(self.flaw, other.flaw)
        return Values(data, None if flaw is None else torch.where(data, 0, flaw))


def worst(*flaws: Tensor | None) -> Tensor | None:
    """The worst of several flaws at each place; None = none."""
    present = [flaw for flaw in flaws if flaw is not None]
    return reduce(torch.maximum, present) if present else None


def when(rule: Values, then: Values, otherwise: Values) -> Values:
    """`then` where the rule is true, else `otherwise`; a rule that is only undefined is not."""
    data = torch.where(rule.data, then.data, otherwise.data)
    if worst(rule.flaw, then.flaw, otherwise.flaw) is None:
        return Values(data)
    none = torch.zeros_like(rule.data, dtype=torch.uint8)
    chosen = torch.where(
        rule.data, *(none if x.flaw is None else x.flaw for x in (then, otherwise))
    )
    decided = none if rule.flaw is None else rule.flaw.masked_fill(rule.flaw == UNDEFINED, 0)
    return Values(data, torch.maximum(chosen, decided))
