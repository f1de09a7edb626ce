"""Rewards grade responses.

A response is undecided, and not trained on, if its gold answer is at fault or the machine fails, or
if your function says so. An answer that cannot be read or compared is wrong.

Math          the final answer is mathematically equal to the gold answer (MathVerifier)
MathVerify    the package math-verify finds the response equal to the gold answer
Exact         the response equals the answer
Custom        your function
ReasoningGym  the score of a reasoning-gym dataset
RewardModel   the output of a sequence classifier
Several       a weighted sum of rewards with names
Overlong      DAPO's length penalty, added to any of them
"""

from rlobj.base.lazy import names_of
from rlobj.rewards import (  # noqa: F401  # with them, all kinds are known
    custom,
    math_verify,
    reasoning_gym,
    reward_model,
    several,
)

__getattr__, __all__ = names_of(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
