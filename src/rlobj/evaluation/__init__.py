"""Evaluation: how often a model's responses to held-out problems are right.

evaluate          a model, problems and a protocol -> an `EvaluationResult`
score             grade responses made elsewhere
regrade           grade stored responses again
regrade_with      grade stored responses with a second grader, beside the evaluation's verdicts
compare           two evaluations -> paired differences, p-values, problems that changed sides
summarise_folder  the result of what is stored
sample_and_grade  problems -> graded responses, with a sampler and a grader that are open
summarise         graded responses -> avg@n, pass@k, maj@k, standard errors, intervals, lengths
PROTOCOLS         how papers evaluated
"""

from rlobj.evaluation.comparing import compare
from rlobj.evaluation.evaluating import evaluate, sample_and_grade
from rlobj.evaluation.problem_sets import PROTOCOLS
from rlobj.evaluation.regrading import regrade, score
from rlobj.evaluation.result import (
    EvaluationCallback,
    EvaluationResult,
    GradeChange,
    summarise_folder,
)
from rlobj.evaluation.samples import GradedBenchmark, GradedProblem, ResponseRecord, Samples
from rlobj.evaluation.second_grader import SecondGrading, SecondVerdict, regrade_with
from rlobj.evaluation.summary import BenchmarkSummary, summarise

__all__ = [
    "PROTOCOLS",
    "BenchmarkSummary",
    "EvaluationCallback",
    "EvaluationResult",
    "GradeChange",
    "GradedBenchmark",
    "GradedProblem",
    "ResponseRecord",
    "Samples",
    "SecondGrading",
    "SecondVerdict",
    "compare",
    "evaluate",
    "regrade",
    "regrade_with",
    "sample_and_grade",
    "score",
    "summarise",
    "summarise_folder",
]
