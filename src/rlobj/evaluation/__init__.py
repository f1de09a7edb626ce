"""Evaluation: how often a model's responses to held-out problems are right.

evaluate          a model, problems and a protocol -> an `EvaluationResult`
regrade           grade stored responses again, and compare the grades before and after
compare           two evaluations -> paired differences, p-values, problems that changed sides
summarise_folder  the result of what is stored
sample_and_grade  problems -> graded responses, with a sampler and a grader that are open
GradedBenchmark   graded responses -> avg@n, pass@k, maj@k, standard errors, intervals, lengths
PROTOCOLS         how papers evaluated
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
