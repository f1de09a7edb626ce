"""The checks of a diagnosis.

policy         it is lost, does not explore, or moves too far in an update
objective      it has no signal, or a rule, a setting or a teacher of it does not do what it should
responses      they are cut or long, sampled from another policy, or not compared
conversations  tools are not called or of no use, or turns run out
"""

from rlobj.insight.diagnosis.check import Check
from rlobj.insight.diagnosis.checks import conversations, objective, policy, responses

CHECKS: dict[str, Check] = {
    "collapse": policy.collapse,
    "groups-without-signal": objective.groups_without_signal,
    "entropy-falling": policy.entropy_falling,
    "entropy-exploding": policy.entropy_exploding,
    "ratio-spike": policy.ratio_spike,
    "gradient-spike": policy.gradient_spike,
    "learning-rate-too-high": policy.learning_rate_too_high,
    "rule-never-fires": objective.rule_never_fires,
    "rule-fires-on-everything": objective.rule_fires_on_everything,
    "inert-setting": objective.inert_setting,
    "sampler-drift": responses.sampler_drift,
    "truncation": responses.truncation,
    "length-growth": responses.length_growth,
    "verifier-trouble": responses.verifier_trouble,
    "wrong-group-size": objective.wrong_group_size,
    "teacher-trouble": objective.teacher_trouble,
    "tool-never-called": conversations.tool_never_called,
    "called-in-vain": conversations.called_in_vain,
    "turn-limit-reached": conversations.turn_limit_reached,
}
"""The checks by the names of their findings, in the order of `FindingName`."""

_READ = [name for check in CHECKS.values() for name in (*check.needs, *check.also)]
METRICS = tuple(dict.fromkeys(_READ))
"""All metrics that checks read."""
