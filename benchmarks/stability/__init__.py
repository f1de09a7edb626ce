"""Which objectives stay stable, and why: a study of many small runs with paired seeds.

`python -m benchmarks.stability --runs DIR` does all of it; docs/stability.md reports it.

    conditions   what is compared: objectives of presets, and a control
    regimes      the settings, and the rule that chooses them from runs of dapo-loss alone
    runs         one run in a process of its own, and many of them, each trained once
"""
