"""Evaluation: how often a model's responses to held-out problems are right.

evaluate          a model, problems and a protocol -> an `EvaluationResult`
score             grade responses made elsewhere
regrade           grade stored responses again
compare           two evaluations -> paired differences, p-values, problems that changed sides
summarise_folder  the result of what is stored
sample_and_grade  problems -> graded responses, with a sampler and a grader that are open
summarise         graded responses -> avg@n, pass@k, maj@k, standard errors, intervals, lengths
PROTOCOLS         how papers evaluated
"""

from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.comparing import EvaluationComparison, compare
from rlobj.evaluation.evaluating import evaluate
from rlobj.evaluation.paired import Comparison, compare_benchmark
from rlobj.evaluation.protocols import PROTOCOLS
from rlobj.evaluation.publishing import summarise_folder
from rlobj.evaluation.records import GradedBenchmark, GradedProblem, ResponseRecord
from rlobj.evaluation.regrading import regrade, score
from rlobj.evaluation.result import EvaluationResult, GradeChange
from rlobj.evaluation.samples import Samples
from rlobj.evaluation.sampling import sample_and_grade
from rlobj.evaluation.summary import (
    BenchmarkResult,
    BenchmarkSummary,
    macro_average,
    summarise,
)

__all__ = [
    "PROTOCOLS",
    "BenchmarkResult",
    "BenchmarkSummary",
    "Comparison",
    "EvaluationCallback",
    "EvaluationComparison",
    "EvaluationResult",
    "GradeChange",
    "GradedBenchmark",
    "GradedProblem",
    "ResponseRecord",
    "Samples",
    "compare",
    "compare_benchmark",
    "evaluate",
    "macro_average",
    "regrade",
    "sample_and_grade",
    "score",
    "summarise",
    "summarise_folder",
]
