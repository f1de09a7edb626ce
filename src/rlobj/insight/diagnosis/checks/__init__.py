"""The checks of a diagnosis.

policy         it is lost, does not explore, or moves too far in an update
objective      it has no signal, or a rule, a setting or a teacher of it does not do what it should
responses      they are cut or long, sampled from another policy, or not compared
conversations  tools are not called or of no use, or turns run out
"""

from typing import get_args

from rlobj.insight.diagnosis.check import Check
from rlobj.insight.diagnosis.checks import conversations, objective, policy, responses
from rlobj.settings.training import FindingName

_FUNCTIONS = {**vars(policy), **vars(objective), **vars(responses), **vars(conversations)}
CHECKS: dict[str, Check] = {
    name: _FUNCTIONS[name.replace("-", "_")] for name in get_args(FindingName)
}
"""The checks by the names of their findings. `tool_never_called` finds tool-never-called."""

_READ = [name for check in CHECKS.values() for name in (*check.needs, *check.also)]
METRICS = tuple(dict.fromkeys(_READ))
"""All metrics that checks read."""
