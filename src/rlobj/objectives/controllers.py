"""Controllers: numbers that change during a run. Rules read them by name.

`Objective.observe` calls each controller once per rollout. A controller's memory is a dict that can
be written as JSON.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from rlobj.base.errors import ConfigError
from rlobj.base.primitive import Primitive
from rlobj.objectives.divisors import Divisor
from rlobj.objectives.frame import Frame
from rlobj.objectives.rules import Column

__all__ = ["AdaptiveGate", "Controller", "ControllerField", "Gate"]


class Controller(Primitive):
    """Base class of controllers; `when(rule, "W", 1)` reads the value of the controller W."""

    def needs(self) -> tuple[str, ...]:
        """TokenBatch columns that `observe` reads."""
        return ("old_entropy",)

    def init(self) -> dict[str, Any]:
        """The memory before the first rollout; rules read its `value`."""
        raise NotImplementedError

    def observe(self, memory: dict[str, Any], frame: Frame, divisor: Divisor) -> dict[str, Any]:
        """The memory after a rollout.

        Args:
            memory: the memory before the rollout.
            frame: the rollout's tokens on this rank.
            divisor: the objective's divisor, for means over tokens.
        """
        raise NotImplementedError


ControllerField = Annotated[SerializeAsAny[Controller], BeforeValidator(Controller.build)]


def mean_old_entropy(frame: Frame, divisor: Divisor) -> float:
    """H̄, the mean entropy of π_old over all tokens of the rollout, by the divisor; nats."""
    values = frame.number(Column("old_entropy"))
    return divisor.mean(values, frame.decided, frame.table, frame.comm)


class Gate(Controller):
    """`on` while the rollout's mean entropy is below the target, else `off`.

    If the mean is not finite, as for an empty rollout, the memory does not change.
    Source: STARE, arXiv:2606.19236, target-entropy gate.
    """

    target: float = Field(description="H_tgt, nats")
    on: float = Field(description="value while the mean entropy is below the target")
    off: float = Field(default=1.0, description="value otherwise")

    def init(self) -> dict[str, Any]:
        return {"value": self.off}

    def observe(self, memory: dict[str, Any], frame: Frame, divisor: Divisor) -> dict[str, Any]:
        entropy = mean_old_entropy(frame, divisor)
        if not math.isfinite(entropy):
            return memory
        return {"value": self.on if entropy < self.target else self.off, "entropy": entropy}


class AdaptiveGate(Controller):
    """A gate with a level that changes: level ← clip(level + step·sgn(H_tgt − H̄), low, high).

    The value is the level while H̄ < H_tgt, else `off`. STARE's W has start 1.1, step 0.01, low 1
    and high 1.5; its M has start 0.9, step −0.01, low 0.5 and high 1. An adaptive entropy
    coefficient has off 0.

    Source: STARE, arXiv:2606.19236, adaptive schedule; Skywork-OR1, arXiv:2505.22312.
    """

    target: float = Field(description="H_tgt, nats")
    start: float = Field(description="the level before the first rollout")
    step: float = Field(
        default=0.01, description="α, change per rollout; < 0 lowers the level at low entropy"
    )
    low: float = Field(description="smallest level")
    high: float = Field(description="largest level")
    off: float = Field(
        default=1.0, description="value while the mean entropy is at the target or above"
    )

    @model_validator(mode="after")
    def _ordered(self) -> AdaptiveGate:
        if not self.low <= self.start <= self.high:
            raise ConfigError(
                f"expected low <= start <= high, got {self.low}, {self.start}, {self.high}"
            )
        return self

    def init(self) -> dict[str, Any]:
        return {"value": self.off, "level": self.start}

    def observe(self, memory: dict[str, Any], frame: Frame, divisor: Divisor) -> dict[str, Any]:
        entropy = mean_old_entropy(frame, divisor)
        if not math.isfinite(entropy):
            return memory
        sign = (self.target > entropy) - (self.target < entropy)
        level = min(max(memory["level"] + self.step * sign, self.low), self.high)
        value = level if entropy < self.target else self.off
        return {"value": value, "level": level, "entropy": entropy}
