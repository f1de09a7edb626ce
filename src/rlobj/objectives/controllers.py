"""Controllers: numbers that change during a run. Rules read them by name.

`Objective.observe` calls each controller once per rollout. A controller's memory is a dict that can
be written as JSON.
"""

import math
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, SerializeAsAny, field_validator, model_validator

from rlobj.base.errors import ConfigError
from rlobj.base.primitives import Primitive
from rlobj.objectives.divisors import Divisor
from rlobj.objectives.frame import Frame
from rlobj.objectives.rules import Level, Number, NumberField, nodes


class Controller(Primitive):
    """Base class of controllers; `when(rule, "W", 1)` reads the value of the controller W."""

    of: NumberField | None = None
    """the number of the rollout, such as reward.mean(); null = H̄, the mean entropy of π_old over
    all tokens, by the objective's divisor"""

    @field_validator("of")
    @classmethod
    def _one_number(cls, of: Number | None) -> Number | None:
        if of is not None and of.level != Level.UPDATE:
            raise ConfigError(f"'{of}' is no number for the whole rollout; use {of.mean()}")
        if of is not None and any(isinstance(node, nodes.Controlled) for node in of.walk()):
            raise ConfigError(f"'{of}' reads a controller; expected columns of the rollout")
        return of

    def needs(self) -> tuple[str, ...]:
        """TokenBatch columns that `observe` reads."""
        if self.of is None:
            return ("old_entropy",)
        return ("advantages", *self.of.batch_columns())

    def measure(self, frame: Frame, divisor: Divisor) -> float:
        """The number of the rollout; NaN if it has none, as in an empty rollout."""
        if self.of is None:
            values = frame.number(nodes.Column("old_entropy"))
            return divisor.mean(values, frame.decided, frame.table, frame.comm)
        value = frame.evaluate(self.of)
        return math.nan if value.undefined is not None and value.undefined else float(value.data)

    def init(self) -> dict[str, Any]:
        """The memory before the first rollout; rules read its `value`."""
        raise NotImplementedError

    def observe(self, memory: dict[str, Any], frame: Frame, divisor: Divisor) -> dict[str, Any]:
        """The memory after a rollout; it does not change if the number is not finite.

        Args:
            memory: the memory before the rollout.
            frame: the rollout's tokens on this rank.
            divisor: the objective's divisor, for means over tokens.
        """
        number = self.measure(frame, divisor)
        if not math.isfinite(number):
            return memory
        name = "entropy" if self.of is None else "measured"
        return {**self.react(memory, number), name: number}

    def react(self, memory: dict[str, Any], number: float) -> dict[str, Any]:
        """The memory after a rollout with this number."""
        raise NotImplementedError


ControllerField = Annotated[SerializeAsAny[Controller], BeforeValidator(Controller.build)]


def _present(controllers: Any) -> Any:
    if not isinstance(controllers, dict):
        return controllers or {}
    return {name: controller for name, controller in controllers.items() if controller is not None}


ControllerFields = Annotated[dict[str, ControllerField], BeforeValidator(_present)]
"""Controllers by name; null removes one of them, or all."""


class Gate(Controller):
    """`on` while the rollout's mean entropy, or the number `of`, is below the target, else `off`.

    Source: STARE, arXiv:2606.19236, target-entropy gate.
    """

    target: float
    """H_tgt; nats if the number is the entropy"""
    on: float
    """value while the number is below the target"""
    off: float = 1.0
    """value otherwise"""

    def init(self) -> dict[str, Any]:
        return {"value": self.off}

    def react(self, memory: dict[str, Any], number: float) -> dict[str, Any]:
        return {"value": self.on if number < self.target else self.off}


class AdaptiveGate(Controller):
    """A gate with a level that changes: level ← clip(level + step·sgn(H_tgt − H̄), low, high).

    The value is the level while H̄ < H_tgt, else `off`. H̄ is the mean entropy or the number `of`.
    STARE's W has start 1.1, step 0.01, low 1 and high 1.5; its M has start 0.9, step −0.01, low 0.5
    and high 1. An adaptive entropy coefficient has off 0.

    Source: STARE, arXiv:2606.19236, adaptive schedule; Skywork-OR1, arXiv:2505.22312.
    """

    target: float
    """H_tgt; nats if the number is the entropy"""
    start: float
    """the level before the first rollout"""
    step: float = 0.01
    """α, change per rollout; < 0 lowers the level below the target"""
    low: float
    """smallest level"""
    high: float
    """largest level"""
    off: float = 1.0
    """value while the number is not below the target"""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.start <= self.high:
            raise ConfigError(f"expected low <= start <= high, got {self.start}")
        return self

    def init(self) -> dict[str, Any]:
        return {"value": self.off, "level": self.start}

    def react(self, memory: dict[str, Any], number: float) -> dict[str, Any]:
        sign = (self.target > number) - (self.target < number)
        level = min(max(memory["level"] + self.step * sign, self.low), self.high)
        return {"value": level if number < self.target else self.off, "level": level}
