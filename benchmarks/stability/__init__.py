"""Which objectives stay stable, and why: a study of many small runs with paired seeds.

`python -m benchmarks.stability --runs DIR` does all of it; docs/stability.md reports it.

    conditions   what is compared: objectives of presets, and a control
    regimes      the settings, and the rule that chooses them from runs of dapo-loss alone
    runs         one run in a process of its own, and many of them, each trained once

The analysis, written before any other objective than dapo-loss was trained in a chosen setting:

- *Last* is the mean of a run's last three held-out accuracies, *best* its highest one, *area* the
  mean of those after step 0. A run *degraded* if last is below its accuracy before training, and
  *collapsed* if last is below half of it. A run that failed counts as collapsed, with last 0.
- A run's entropy *collapsed* if its mean over the last 20 steps is below a tenth of that over the
  first 10 steps, and *exploded* if it is above that over the first 10 steps.
- The primary comparison is *last* at the edge, 20 seeds, as a paired difference: run of a condition
  minus run of dapo-loss with the same seed. Six conditions against dapo-loss, and stapo against its
  random control, are seven comparisons. p-values are those of the exact sign-flip test of the mean,
  two-sided, corrected by Holm; intervals are paired t intervals of 95% and of 1 - 0.05/7.
- Shares of degraded and of collapsed runs have Wilson intervals and are compared by McNemar's exact
  test. These, best, area, entropy, the stable setting (5 seeds) and everything made by flag are
  secondary: they are described, and nothing is concluded from their p-values.
- Power: the smallest difference that the primary comparison finds with probability 0.8, from the
  spread of the search's runs at the edge as if pairing did not help, and from the spread of the
  paired differences.
"""
