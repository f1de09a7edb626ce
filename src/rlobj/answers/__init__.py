"""Extract, parse and compare mathematical answers.

    >>> from rlobj.answers import verify
    >>> verify(r"So it is \\boxed{2^{10}}.", "1024").correct
    True

This package stands alone: it needs neither torch nor the rest of rlobj, except `base` and
`workers`. Only `numeric` and `symbolic` need more than the standard library.

    verifier               MathVerifier: responses -> verdicts; any thread, with deadlines
    worker                 what its processes compare: what exact arithmetic cannot decide
    guards                 compare equal text and integers; refuse answers too large to evaluate
    equivalence            compare two texts
    version                what a verdict depends on, besides the answers

    response -> text of the final answer
    extraction             the rule; the answer after a phrase
    boxes                  the answer in boxes
    sentences, assertions  the sentence of an answer, and whether it asserts the answer

    text -> structure: a value, tuple, list, interval, matrix, words, ...
    normalization, lexer   text -> tokens
    expression_parser      tokens -> expression tree
    structure_parser       tokens -> structure
    conditions, relations  its parts: conditions and layouts; equations and inequalities
    phrases, units, words  its words: around a value, after a value, and in place of one

    two structures -> equal or not
    comparison             compare part by part; the order in which rules decide
    exact, regions         compare values and sets of real numbers exactly
    numeric, points        compare values by evaluation at many points (mpmath, in a worker)
    symbolic               compare integrals, limits and infinite sums (math-verify, in a worker)
"""

from rlobj.answers.extraction import extract_answer
from rlobj.answers.verifier import MathVerifier, Verdict, verify
from rlobj.answers.version import verifier_version

__all__ = ["MathVerifier", "Verdict", "extract_answer", "verifier_version", "verify"]
