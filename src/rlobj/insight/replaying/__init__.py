"""Replay: other objectives and rules on recorded tokens, without a model.

candidates  what is replayed
planning    objectives planned again on full tables
result      Replay
replaying   replay
"""

from rlobj.insight.replaying.replaying import replay
from rlobj.insight.replaying.result import Replay

__all__ = ["Replay", "replay"]
