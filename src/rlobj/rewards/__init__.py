"""Rewards: grading responses, with undecided kept apart from wrong.

Math      MathVerifier: extraction, integers, then math-verify in killable processes
Exact     the response is the answer
Custom    your function
Overlong  DAPO's length penalty, on top of any of them
"""

from rlobj.rewards.extraction import extract_answer
from rlobj.rewards.kinds import Custom, Exact, Graded, Grader, Math, Reward, RewardConfig
from rlobj.rewards.overlong import Overlong, overlong_penalty
from rlobj.rewards.verifier import MathVerifier, Verdict

__all__ = [
    "Custom",
    "Exact",
    "Graded",
    "Grader",
    "Math",
    "MathVerifier",
    "Overlong",
    "Reward",
    "RewardConfig",
    "Verdict",
    "extract_answer",
    "overlong_penalty",
]
