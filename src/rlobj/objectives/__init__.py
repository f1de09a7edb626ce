"""Policy-optimization objectives: a batch is a table of tokens, an objective is data.

    loss = − (1/Z) Σ m·ω·S(r, A)  +  Σ_k (1/Z_k) Σ c_k·P_k

tokens        TokenBatch: one row per trained token
rules         expressions over its columns, in Python and as text: m and ω
advantages    A, computed from rewards
surrogates    S, the value of a token that the policy maximises
divisors      Z, the number that the sum over tokens is divided by
penalties     P_k, terms added to the loss
controllers   numbers that change during a run
mismatch      importance weights between sampler and trainer
objective     Objective: all of these, with `plan` and `loss`

`functional` has ratios and estimators of the KL as functions of tensors, and `statistics` has sums
and order statistics over all ranks. `frame` evaluates rules. `plan` holds the results. `planning`
has the parts of the stages. `explanation` has an objective in words, and the columns it reads.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["functional"])
