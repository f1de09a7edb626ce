"""Extract, parse and compare mathematical answers.

    >>> from rlobj.answers import verify
    >>> verify(r"So it is \\boxed{2^{10}}.", "1024").correct
    True

This package stands alone: it needs neither torch nor the rest of rlobj, except `base` and
`workers`. Only `numeric` and `worker` need more than the standard library.

    verifier          MathVerifier: responses -> verdicts; any thread, with deadlines
    extraction        response -> text of the final answer: the boxes of a sentence, or a phrase
    assertions        whether the sentence of an answer asserts it

    equivalence       two texts -> equal or not: text, integers, limits, then structures
    lexer             text -> tokens; `vocabulary` has the tables of words and commands
    words             tokens of words: nouns and units around a value, and words in place of one
    structure_parser  tokens -> structure: a value, tuple, list, interval, equation, ...
    structures        the kinds of structures
    expressions       tokens -> expression tree, and its exact value
    comparison        two structures -> equal or not: rules in their order, exactly

    worker            what its processes compare: what exact arithmetic cannot decide, with
                      math-verify for integrals, limits and infinite sums
    numeric           values by evaluation at many points (mpmath)
    version           what a verdict depends on, besides the answers
"""

from rlobj.answers.extraction import extract_answer
from rlobj.answers.verifier import MathVerifier, Verdict, verify
from rlobj.answers.version import verifier_version

__all__ = ["MathVerifier", "Verdict", "extract_answer", "verifier_version", "verify"]
