"""The algebra: a batch is a table of tokens, and an objective is data over its columns.

tokens        TokenBatch, the table
rules         expressions over its columns, in Python and as text
advantages    rewards to advantages
surrogates    what the policy maximises, per token
divisors      how tokens become one number
penalties     terms added to the loss
controllers   numbers that move with the run
mismatch      weights for the gap between sampler and trainer
objective     all of these together: `plan` and `loss`

`functional` holds the equations, `statistics` the exact sums and order statistics, `frame` the
columns that rules read.
"""
