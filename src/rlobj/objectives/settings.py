"""Settings that are a number, or an expression with one number per token.

    surrogate: {kind: clip, low: 0.2, high: "0.2 + 0.1 * entropy"}

`plan` evaluates the expressions once per update. When a primitive is called, each such setting is a
float, or a tensor [N] with the values of the plan.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic.fields import FieldInfo
from pydantic_core import core_schema
from torch import Tensor

from rlobj.base.errors import ConfigError
from rlobj.base.primitives import Primitive
from rlobj.objectives.rules import Number, read_number
from rlobj.objectives.rules.nodes import Constant

P = TypeVar("P", bound=Primitive)


@dataclass(frozen=True)
class Bounds:
    """The bounds of a setting.

    Attributes:
        at_least: the smallest value.
        above: values must be larger.
        at_most: the largest value.
        optional: whether null is a value.
    """

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    optional: bool = False

    def __str__(self) -> str:
        if self.above > -math.inf:
            return f"a number > {self.above:g}"
        if self.at_most < math.inf:
            return f"a number from {self.at_least:g} to {self.at_most:g}"
        return "a number" if self.at_least == -math.inf else f"a number >= {self.at_least:g}"

    def read(self, value: Any) -> float | Number | None:
        """The setting from a number, an expression or text.

        Raises:
            ConfigError: something else, or a number out of bounds.
        """
        if value is None and self.optional:
            return None
        expected = f"expected {self} or an expression such as '0.2 + 0.1 * entropy'"
        if value is None or isinstance(value, bool):
            raise ConfigError(f"{expected}, got {value!r}")
        number = read_number(value)
        if not isinstance(number, Constant):
            return number
        if self.outside(number.value):
            raise ConfigError(f"{expected}, got {value!r}")
        return float(number.value)

    def outside(self, values: Any) -> Any:
        """Whether a number is out of bounds, or which values are, bool [N]."""
        inside = (values >= self.at_least) & (values > self.above) & (values <= self.at_most)
        return inside ^ True

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: str(value) if isinstance(value, Number) else value
            ),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": ["number", "string", *(["null"] if self.optional else [])]}


AnyNumber = Annotated[Any, Bounds()]
NonNegative = Annotated[Any, Bounds(at_least=0)]
Positive = Annotated[Any, Bounds(above=0)]
SHARE = Bounds(at_least=0, at_most=1)
Share = Annotated[Any, SHARE]
OptionalShare = Annotated[Any, Bounds(at_least=0, at_most=1, optional=True)]
OptionalPositive = Annotated[Any, Bounds(above=0, optional=True)]
OptionalAboveOne = Annotated[Any, Bounds(above=1, optional=True)]


def bounds_of(field: FieldInfo) -> Bounds | None:
    """The bounds of a setting that can be an expression; None for all other settings."""
    return next((entry for entry in field.metadata if isinstance(entry, Bounds)), None)


def expressions(primitive: Primitive, path: str = "") -> Iterator[tuple[str, Number, Bounds]]:
    """The expression-valued settings of a primitive and of those inside it: path, value, bounds."""
    for name, field in type(primitive).model_fields.items():
        value = getattr(primitive, name)
        here = f"{path}{name}"
        bounds = bounds_of(field)
        if bounds is not None and isinstance(value, Number):
            yield here, value, bounds
        elif isinstance(value, Primitive):
            yield from expressions(value, f"{here}.")


def bind(primitive: P, values: Mapping[str, Tensor]) -> P:
    """A copy that has the plan's values in place of expression-valued settings.

    Args:
        primitive: a surrogate, penalty or mismatch.
        values: [N] for each expression, by its text.
    """
    changed: dict[str, Any] = {}
    for name, field in type(primitive).model_fields.items():
        value = getattr(primitive, name)
        if isinstance(value, Number) and bounds_of(field) is not None:
            changed[name] = values[str(value)]
        elif isinstance(value, Primitive) and (inner := bind(value, values)) is not value:
            changed[name] = inner
    return primitive.model_copy(update=changed) if changed else primitive
