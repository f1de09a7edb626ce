"""What a frame says of primitives: the values of their settings, and shares of a divisor."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from rlobj.base.primitives import Primitive
from rlobj.objectives.divisors import Divisor
from rlobj.objectives.frame import Frame
from rlobj.objectives.mismatch import Mismatch
from rlobj.objectives.rules import Rule
from rlobj.objectives.settings import bind, expressions


def with_values(frame: Frame, mismatch: Mismatch) -> Mismatch:
    """The correction with the values of its expressions."""
    return bind(mismatch, fixed_values(frame, {"mismatch": mismatch}))


def fixed_values(
    frame: Frame, primitives: Mapping[str, Primitive], rules: Iterable[Rule] = ()
) -> dict[str, Tensor]:
    """The values of rules, bool [N], and of expression-valued settings, [N], by their text.

    Args:
        frame: the tokens of the update.
        primitives: the owners of the settings, each with its name for error messages.
        rules: the rules that surrogates read.
    """
    values = {str(rule): frame.rule(rule) for rule in rules}
    for who, primitive in primitives.items():
        for path, expression, bounds in expressions(primitive):
            numbers = frame.number(expression, f"{who}.{path}")
            frame.refuse(
                frame.decided & bounds.outside(numbers),
                f"{who}.{path} '{expression}' is not {bounds}",
            )
            values[str(expression)] = numbers.masked_fill(~frame.decided, 1.0)
    return values


def token_shares(
    frame: Frame, divisor: Divisor, kept: Tensor, chosen: Tensor, scale: Tensor
) -> Tensor:
    """scale/Z_t on the chosen tokens, 0 elsewhere, [N].

    Args:
        frame: the tokens of the update.
        divisor: Z.
        kept: the tokens that it counts, unless it counts all, bool [N].
        chosen: the tokens that get a share, bool [N].
        scale: the numerator, [N].
    """
    counted = kept if divisor.over == "kept" else frame.decided
    z = divisor(counted, frame.table, frame.comm)
    z = divisor.checked(z, counted.shape, type(divisor).__call__)
    return (scale / z.to(frame.dtype)).masked_fill_(~(chosen & (z > 0)), 0.0)
