"""The columns of rules as Python objects, for example `prob < 0.002`."""

from rlobj.objectives.rules.nodes import Column as _Column

prob, logprob, surprisal, entropy = map(_Column, ("prob", "logprob", "surprisal", "entropy"))
old_prob, old_logprob = _Column("old_prob"), _Column("old_logprob")
old_surprisal, old_entropy = _Column("old_surprisal"), _Column("old_entropy")
advantage, reward, ratio = map(_Column, ("advantage", "reward", "ratio"))
length, position, covariance = map(_Column, ("length", "position", "covariance"))
proxy_gap, ref_gap, sampler_gap = map(_Column, ("proxy_gap", "ref_gap", "sampler_gap"))
collision, old_collision = _Column("collision"), _Column("old_collision")
gradient_norm = _Column("gradient_norm")
