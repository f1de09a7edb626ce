"""Evaluation: how often sampled responses to held-out problems are right.

sample_and_grade  problems -> responses -> grades, kept in memory or in a folder
summarise  graded responses -> avg@n, pass@k, maj@k, standard errors, intervals, lengths
compare    two evaluations of the same problems -> paired difference, p-value, flips
PROTOCOLS  how the papers evaluated
"""

from rlobj.evaluation.estimators import pass_at_k, standard_errors
from rlobj.evaluation.paired import Comparison, compare
from rlobj.evaluation.records import GradedBenchmark, GradedProblem, ResponseRecord
from rlobj.evaluation.samples import EvaluationDirectory, Samples
from rlobj.evaluation.sampling import grade_all, sample_and_grade, sample_seed
from rlobj.evaluation.summary import BenchmarkSummary, macro_average, summarise

__all__ = [
    "BenchmarkSummary",
    "Comparison",
    "EvaluationDirectory",
    "GradedBenchmark",
    "GradedProblem",
    "ResponseRecord",
    "Samples",
    "compare",
    "grade_all",
    "macro_average",
    "pass_at_k",
    "sample_and_grade",
    "sample_seed",
    "standard_errors",
    "summarise",
]
