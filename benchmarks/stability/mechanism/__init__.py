"""The mechanism by itself: exact measurements with tokens planted at known places and rates.

    batches     policies, and rollouts with planted tokens
    gradients   how much of the gradient planted tokens carry; STAPO's bounds
    rules       precision and recall of the objectives' rules
    updates     what one update does to the probability of planted tokens
    entropies   STARE's quadrants: the predicted and the measured change of entropy
    growth      short runs whose sampler plants tokens
    parts       all measurements, as rows
    pages       the tables
    pictures    the two pictures

`python -m benchmarks.stability.mechanism [--out DIR]` measures everything in about six minutes on
one thread; docs/stability.md reports it.
"""
