"""Evaluation: how often sampled responses to held-out problems are right.

evaluate   problems -> responses -> grades, kept in `Samples` (or a folder that survives kills)
summarise  graded responses -> avg@n, pass@k, maj@k, standard errors, intervals, lengths
compare    two evaluations of the same problems -> paired difference, p-value, flips
PROTOCOLS  how the papers evaluated
"""

from rlobj.evaluation.collecting import evaluate, grade_all, sample_seed
from rlobj.evaluation.estimators import pass_at_k, standard_errors
from rlobj.evaluation.paired import Comparison, compare
from rlobj.evaluation.records import Answered, Evaluation, Response
from rlobj.evaluation.samples import EvaluationDirectory, Samples
from rlobj.evaluation.summary import Summary, macro_average, summarise

__all__ = [
    "Answered",
    "Comparison",
    "Evaluation",
    "EvaluationDirectory",
    "Response",
    "Samples",
    "Summary",
    "compare",
    "evaluate",
    "grade_all",
    "macro_average",
    "pass_at_k",
    "sample_seed",
    "standard_errors",
    "summarise",
]
