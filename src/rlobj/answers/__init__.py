"""Extract, parse and compare mathematical answers.

    >>> from rlobj.answers import verify
    >>> verify(r"So it is \\boxed{2^{10}}.", "1024").correct
    True

This package stands alone: it needs neither torch nor the rest of rlobj (except its errors and signs
of life). Only `numeric` and `symbolic` need more than the standard library.

    verifier               MathVerifier: responses -> verdicts; any thread, with deadlines
    worker, worker_process the processes that compare what exact arithmetic cannot decide
    extraction             response -> text of the final answer
    guards                 compare equal text and integers; refuse answers too large to evaluate
    normalization, lexer   text -> tokens
    expression_parser      tokens -> expression tree
    structure_parser       tokens -> structure: a value, tuple, list, interval, matrix, words, ...
    relations, matrices    its parts: equations and inequalities; matrices
    clauses                its parts: conditions, implications and layouts around an answer
    comparison             compare two structures part by part
    regions, derivatives   compare sets of real numbers; notations of derivatives
    points                 the random points at which expressions are compared
    exact, rational        compare values exactly
    numeric                compare values by evaluation at many points (mpmath, in a worker)
    symbolic               compare integrals, limits and infinite sums (math-verify, in a worker)
    equivalence            all of this for two texts
    version                which version of all this gave a verdict
"""

from rlobj.answers.extraction import extract_answer
from rlobj.answers.verifier import MathVerifier, Verdict, verifier_version, verify

__all__ = ["MathVerifier", "Verdict", "extract_answer", "verifier_version", "verify"]
