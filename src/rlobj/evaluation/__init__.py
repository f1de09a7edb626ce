"""Evaluation: how often sampled responses to held-out problems are right."""

from rlobj.evaluation.evaluate import Answered, Evaluation, evaluate, problem_seeds
from rlobj.evaluation.statistics import pass_at_k, standard_errors

__all__ = ["Answered", "Evaluation", "evaluate", "pass_at_k", "problem_seeds", "standard_errors"]
