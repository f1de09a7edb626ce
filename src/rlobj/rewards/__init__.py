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

from rlobj.answers import MathVerifier, extract_answer
from rlobj.rewards.custom import Custom, function_grader
from rlobj.rewards.kinds import (
    Exact,
    Graded,
    Grader,
    Math,
    Overlong,
    Reward,
    RewardConfig,
    overlong_penalty,
)
from rlobj.rewards.math_verify import MathVerify
from rlobj.rewards.reasoning_gym import ReasoningGym
from rlobj.rewards.reward_model import RewardModel
from rlobj.rewards.several import Several

__all__ = [
    "Custom",
    "Exact",
    "Graded",
    "Grader",
    "Math",
    "MathVerifier",
    "MathVerify",
    "Overlong",
    "ReasoningGym",
    "Reward",
    "RewardConfig",
    "RewardModel",
    "Several",
    "extract_answer",
    "function_grader",
    "overlong_penalty",
]
