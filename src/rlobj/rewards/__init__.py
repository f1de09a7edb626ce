"""Rewards grade responses; an undecided response is not a wrong one.

Math              the final answer is mathematically equal to the gold answer (MathVerifier)
Exact             the response equals the answer
Custom            your function
KnightsAndKnaves  every person's role is right
Several           a weighted sum of rewards with names
Overlong          DAPO's length penalty, added to any of them
"""

from rlobj.answers.extraction import extract_answer
from rlobj.rewards.kinds import (
    Custom,
    Exact,
    Graded,
    Grader,
    Math,
    Reward,
    RewardConfig,
    function_grader,
)
from rlobj.rewards.knights_and_knaves import KnightsAndKnaves
from rlobj.rewards.overlong import Overlong, overlong_penalty
from rlobj.rewards.several import Several
from rlobj.rewards.verifier import MathVerifier, Verdict

__all__ = [
    "Custom",
    "Exact",
    "Graded",
    "Grader",
    "KnightsAndKnaves",
    "Math",
    "MathVerifier",
    "Overlong",
    "Reward",
    "RewardConfig",
    "Several",
    "Verdict",
    "extract_answer",
    "function_grader",
    "overlong_penalty",
]
