"""Replay: other objectives and rules on recorded tokens, without a model.

plans        what is replayed, objectives planned again on full tables, sums over tokens, and Replay
replaying    replay
"""

from rlobj.insight.replaying.plans import Replay
from rlobj.insight.replaying.replaying import replay

__all__ = ["Replay", "replay"]
