"""Extract, parse and compare mathematical answers.

The worker processes of `rlobj.rewards.MathVerifier` load this package without torch, so it
imports nothing else of rlobj. Only `numeric` and `symbolic` need more than the standard library.

    extraction             response -> text of the final answer
    guards                 compare equal text and integers; refuse answers too large to evaluate
    normalization, lexer   text -> tokens
    expression_parser      tokens -> expression tree
    structure_parser       tokens -> structure: a value, tuple, list, interval, matrix, words, ...
    comparison             compare two structures part by part
    rational               compare rational values exactly
    numeric                compare values by evaluation at many points (mpmath, in a worker)
    symbolic               compare integrals, limits and infinite sums (math-verify, in a worker)
    equivalence            all of this for two texts
"""
