"""Replay: other objectives and rules on recorded tokens, without a model.

candidates   what is replayed: presets, objectives, rules, sweeps
planned      objectives planned again on full tables
sampled      rules on records
sums         sums over tokens, and their errors
collecting   what is added up
result       Replay
replaying    replay
"""

from rlobj.insight.replaying.replaying import replay
from rlobj.insight.replaying.result import Replay

__all__ = ["Replay", "replay"]
