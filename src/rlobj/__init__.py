"""rlobj: composable policy-optimization objectives for RL of language models.

A batch is a table with one row per trained token. An objective is data: expressions over that
table's columns, a surrogate, a divisor.

    >>> from rlobj import Objective, advantage, entropy, prob
    >>> from rlobj.surrogates import Clip
    >>> dapo = Objective(surrogate=Clip(low=0.2, high=0.28))
    >>> stapo = dapo.drop((advantage > 0) & (prob < 0.002) & entropy.bottom(0.8))
"""

from __future__ import annotations

from rlobj.errors import (
    BatchError,
    ConfigError,
    DataError,
    MissingExtra,
    RlobjError,
    RunError,
)
from rlobj.expressions import Column, Expr, parse, when
from rlobj.objective import Objective
from rlobj.plan import LossOutput, Plan
from rlobj.presets import Preset, load_preset
from rlobj.tokens import TokenBatch

__version__ = "0.1.0"

prob = Column("prob")
logprob = Column("logprob")
surprisal = Column("surprisal")
entropy = Column("entropy")
old_prob = Column("old_prob")
old_logprob = Column("old_logprob")
old_surprisal = Column("old_surprisal")
old_entropy = Column("old_entropy")
advantage = Column("advantage")
reward = Column("reward")
ratio = Column("ratio")
length = Column("length")
position = Column("position")
covariance = Column("covariance")
proxy_gap = Column("proxy_gap")
sampler_gap = Column("sampler_gap")
collision = Column("collision")
gradient_norm = Column("gradient_norm")

__all__ = [
    "BatchError",
    "ConfigError",
    "DataError",
    "Expr",
    "LossOutput",
    "MissingExtra",
    "Objective",
    "Plan",
    "Preset",
    "RlobjError",
    "RunError",
    "TokenBatch",
    "__version__",
    "advantage",
    "collision",
    "covariance",
    "entropy",
    "gradient_norm",
    "length",
    "load_preset",
    "logprob",
    "old_entropy",
    "old_logprob",
    "old_prob",
    "old_surprisal",
    "parse",
    "position",
    "prob",
    "proxy_gap",
    "ratio",
    "reward",
    "sampler_gap",
    "surprisal",
    "when",
]
