"""The columns of rules as Python objects, for example `prob < 0.002`."""

from __future__ import annotations

from rlobj.objectives.rules.nodes import Column

__all__ = [
    "advantage",
    "collision",
    "covariance",
    "entropy",
    "gradient_norm",
    "length",
    "logprob",
    "old_entropy",
    "old_logprob",
    "old_prob",
    "old_surprisal",
    "position",
    "prob",
    "proxy_gap",
    "ratio",
    "ref_gap",
    "reward",
    "sampler_gap",
    "surprisal",
]

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
ref_gap = Column("ref_gap")
sampler_gap = Column("sampler_gap")
collision = Column("collision")
gradient_norm = Column("gradient_norm")
