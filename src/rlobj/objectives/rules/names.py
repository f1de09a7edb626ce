"""The columns of rules as Python objects, for example `prob < 0.002`."""

from rlobj.objectives.rules.nodes import Column as _Column

prob = _Column("prob")
logprob = _Column("logprob")
surprisal = _Column("surprisal")
entropy = _Column("entropy")
old_prob = _Column("old_prob")
old_logprob = _Column("old_logprob")
old_surprisal = _Column("old_surprisal")
old_entropy = _Column("old_entropy")
advantage = _Column("advantage")
reward = _Column("reward")
ratio = _Column("ratio")
length = _Column("length")
position = _Column("position")
covariance = _Column("covariance")
proxy_gap = _Column("proxy_gap")
ref_gap = _Column("ref_gap")
sampler_gap = _Column("sampler_gap")
collision = _Column("collision")
old_collision = _Column("old_collision")
gradient_norm = _Column("gradient_norm")
