"""Replay: other objectives and rules on recorded tokens, without a model.

candidates   what is replayed: presets, objectives, rules, sweeps
planned      objectives planned again on full tables
tallies      sums over tokens, and the rows made of them
result       Replay
replaying    replay
"""

from rlobj.insight.replaying.plans import Replay
from rlobj.insight.replaying.replaying import replay

__all__ = ["Replay", "replay"]
