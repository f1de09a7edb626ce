"""Rewards: grading responses, with undecided kept apart from wrong.

Math      MathVerifier: extraction, exact comparison, then algebra in killable processes
Exact     the response is the answer
Custom    your function
KnightsAndKnaves   who is a knight, who a knave
Overlong  DAPO's length penalty, on top of any of them
"""

from rlobj.answers.extraction import extract_answer
from rlobj.answers.settling import canonical
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
from rlobj.rewards.logic import KnightsAndKnaves
from rlobj.rewards.overlong import Overlong, overlong_penalty
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
    "Verdict",
    "canonical",
    "extract_answer",
    "function_grader",
    "overlong_penalty",
]
