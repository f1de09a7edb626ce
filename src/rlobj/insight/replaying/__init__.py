"""Replay: other objectives and rules on recorded tokens, without a model.

candidates  what is replayed
planning    objectives planned again on full tables
replaying   replay, and its result
"""

from rlobj.insight.replaying.replaying import Replay, replay

__all__ = ["Replay", "replay"]
