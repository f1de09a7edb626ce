"""Extract, parse and compare mathematical answers.

    >>> from rlobj.answers import verify
    >>> verify(r"So it is \\boxed{2^{10}}.", "1024").correct
    True

This package stands alone: it needs neither torch nor the rest of rlobj, except `base` and
`workers`. Only `numeric` and `symbolic` need more than the standard library.

    verifier               MathVerifier: responses -> verdicts; any thread, with deadlines
    worker                 what its processes compare: what exact arithmetic cannot decide
    extraction             response -> text of the final answer
    guards                 compare equal text and integers; refuse answers too large to evaluate
    normalization, lexer   text -> tokens
    expression_parser      tokens -> expression tree
    structure_parser       tokens -> structure: a value, tuple, list, interval, matrix, words, ...
    relations              its parts: equations and inequalities
    structures             compare values and sets of real numbers exactly
    comparison             compare two structures part by part, and two texts
    numeric, points        compare values by evaluation at many points (mpmath, in a worker)
    symbolic               compare integrals, limits and infinite sums (math-verify, in a worker)
    version                what a verdict depends on, besides the answers
"""

from rlobj.answers.extraction import extract_answer
from rlobj.answers.verifier import MathVerifier, Verdict, verify
from rlobj.answers.version import verifier_version

__all__ = ["MathVerifier", "Verdict", "extract_answer", "verifier_version", "verify"]
