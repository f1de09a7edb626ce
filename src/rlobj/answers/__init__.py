"""Answers as mathematics: read, classified, compared part by part, without rlobj around it.

The worker processes load this package alone, without torch, so that it imports nothing else of
rlobj. Everything here but `numeric` and `algebra` needs the standard library only.

    surface -> tokens -> expressions (trees) -> structures -> comparison
                              exact (rational values), units
    numeric (mpmath) and algebra (math-verify) decide pairs of trees, in a worker
"""
