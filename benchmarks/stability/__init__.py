"""Where runs learn, who prevents a collapse, and what decides: a study of small runs.

`python -m benchmarks.stability --runs DIR` does all of it; docs/studies.md reports it.

    conditions   the objectives
    plan         the runs, in parts, and the comparisons
    outcomes     the numbers of one run
    analysis     the statistics
    results      the runs that ended, as the report and its pictures read them

The analysis was written and committed before any objective other than dapo-loss was trained. Three
things were known: the first study (four updates per rollout), seven runs by hand with an older
version (one update per rollout, 5e-4; dynamic sampling ended higher), and the search.

- *Accuracy* is the mean of an evaluation and the two before it, on held-out problems; *last* is the
  one at the end. *Reached* means that the accuracy is at least 0.85. *Generated* tokens are all
  sampled tokens, those of dropped groups too. *Seconds* are CPU seconds of sampling and training.
- **Search**: dapo-loss, static and dynamic, at 5e-4, 7.5e-4 and 3.33e-4, seeds 100 and 101. Each
  kind of sampling gets the learning rate with the smallest geometric mean of generated tokens until
  0.85. A run that does not reach it counts with the tokens of all its steps.
- **Threshold**: STAPO keeps its rule, `(advantage > 0) & (prob < TAU) & entropy.bottom(0.8)`. TAU
  is swept from 0.002 to 0.2 in nine values by `rlobj replay --sweep` on the tables of seed 100 at
  both chosen rates. Of the values whose precision is at least 0.9, the one with the greatest recall
  is taken, of equal ones the smallest; of the two runs, the larger one, rounded up to one digit.
  `stapo*` has it, and `random*` drops as many random tokens with a positive advantage.
- **Primary outcome**: generated tokens until 0.85. Runs are compared by log2 within a horizon, the
  least number of tokens that any run of the comparison generated in all; a run that has not reached
  0.85 by then counts with the horizon. So ratios are nearer to 1 than they are without a horizon.
- **Family**: seven comparisons, corrected by Holm: dynamic against static sampling over the four
  objectives (6 seeds each); stare and stapo* against dapo-loss, and stapo* against random*, over
  both kinds of sampling; dynamic sampling against each of its three controls (6 and 5 seeds).
  p-values are those of the permutation test within strata (objective or sampling), two-sided, with
  99,999 random exchanges; intervals are 95% by Welch. Only these seven are tests.
- **Controls** of dynamic sampling with dapo-loss: *more prompts*, as many steps as dynamic
  sampling, with prompts so that about as many tokens are generated; *more steps*, the same tokens
  by more steps of 16 prompts; *no refill*, groups without signal leave the divisor, and no others
  are drawn.
- **Beyond the edge**: four updates per rollout at 6e-4, where all runs of dapo-loss collapsed in
  the first study; seven objectives, 4 seeds. A run *collapsed* if last is below half of the
  accuracy before training. Few seeds cannot give a small p-value after a correction: the runs are
  described.
- **Band**: STARE's gate (weight 1.1) and its adaptive gate (1 to 1.5, by 0.01) with the targets
  0.05, 0.1 and 0.2 nats, one run each beside dapo-loss with the same seed: the share of the steps
  whose entropy is within 20% of the target. Described.
- **Changed after seed 0** of these two parts, whose runs are only described: dapo-loss did not
  collapse at 6e-4 (the prepared policy is not that of the first study). So it was tried at 7e-4,
  8.5e-4 and 1e-3, and at the first of these where it collapsed, six objectives got seeds 1 to 3;
  lp-reg, which had collapsed at 6e-4, did not. In four gates the weight changed nothing, so the
  sixth run and one more went to the weights 2 and 4 with the target 0.1. Seed 0 of the regime and
  the controls was trained before this change, and the other seeds after it.
- Everything else (steps, seconds, last, accuracy at equal tokens) is secondary and described.
- The search chose 3.33e-4 for static sampling (geometric mean 0.37 million tokens) and 5e-4 for
  dynamic sampling (0.38), and TAU = 0.02. Controls: *more steps* has the learning rate of static
  sampling, *more prompts* and *no refill* that of dynamic sampling.
- The time was limited. So static runs have 300 steps and dynamic ones 180, which generate more
  tokens; the search has two seeds; and the other objectives have no search of their own.
"""
