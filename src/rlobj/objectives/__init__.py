"""Policy-optimization objectives: a batch is a table of tokens, an objective is data.

    loss = − (1/Z) Σ m·ω·S(r, A)  +  Σ_k (1/Z_k) Σ c_k·P_k

The way of an objective, from its text to the loss:

objective           Objective: the parts of the equation; its stages `observe`, `plan` and `loss`
rules               m, ω, c_k and settings are expressions, read from text or built in Python
needs               the columns of a table that each stage reads
rollout_advantages  A of a rollout's tables, from the rewards of all ranks
frame               the values of expressions on the tokens of an update, token by token (`values`)
                    or over many tokens (`statistics` over all ranks)
plan                Plan: all that is fixed for an update; `planning` makes it from a frame
loss                the loss of a micro-batch, from its table and the plan

The parts of the equation:

advantages   A, computed from rewards
surrogates   S, the value of a token that the policy maximises
divisors     Z, the number that the sum over tokens is divided by
penalties    P_k, terms added to the loss
mismatch     importance weights between sampler and trainer, a factor of ω
controllers  numbers that change during a run
settings     numbers of these parts that may be expressions
functional   ratios and estimators of the KL as functions of tensors

The table: `tokens` has TokenBatch, `token_columns` reads its columns, `rewards` those of rewards.
`explanation` is an objective in words, `trials` are tables on which a bad one has no value.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["functional"])
