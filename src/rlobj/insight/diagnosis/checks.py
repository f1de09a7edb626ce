"""The checks of a diagnosis: each is a function of the metrics so far.

A check looks at the end of a `History` and returns what it found there, or None. It is silent where
a metric that it reads is absent. `docs/diagnosis.md` explains each check and its thresholds.

To add one: write the function, add a row to `CHECKS` with the metrics that it reads, its name to
`config.findings`, a section to the page, and a run that has it to `benchmarks/sick_runs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlobj.insight.diagnosis import policy_checks as policy
from rlobj.insight.diagnosis import run_checks as run
from rlobj.insight.diagnosis.history import Found, History


@dataclass(frozen=True)
class Check:
    """A check and the metrics without which it says nothing.

    Attributes:
        look: the check.
        needs: metrics; one of them is enough.
        also: metrics that it reads beside them.
    """

    look: Callable[[History], Found | None]
    needs: tuple[str, ...]
    also: tuple[str, ...] = ()


_REWARD = ("reward/mean", "reward/std", "reward/groups", "reward/accuracy")
_AGREED = ("groups/agreed_wrong", "groups/agreed_right")
_SIGNAL = ("groups/without_signal_share",)

CHECKS: dict[str, Check] = {
    "collapse": Check(
        policy.collapse, _REWARD, ("response/most_common", "response/most_common_gold")
    ),
    "groups-without-signal": Check(policy.groups_without_signal, _SIGNAL),
    "entropy-falling": Check(policy.entropy_falling, ("policy/entropy",)),
    "entropy-exploding": Check(policy.entropy_exploding, ("policy/entropy",)),
    "ratio-spike": Check(policy.ratio_spike, ("policy/ratio_max",)),
    "gradient-spike": Check(policy.gradient_spike, ("train/grad_norm",)),
    "learning-rate-too-high": Check(
        policy.learning_rate_too_high, ("policy/kl_old", "train/skipped_updates")
    ),
    "rule-never-fires": Check(
        run.rule_never_fires, ("tokens/dropped", "objective/dropped_tokens"), ("tokens/step",)
    ),
    "rule-fires-on-everything": Check(run.rule_fires_on_everything, ("objective/kept_fraction",)),
    "inert-setting": Check(run.inert_setting, ("reward/mean",)),
    "sampler-drift": Check(run.sampler_drift, ("sampler/logprob_gap",), ("sampler/kl",)),
    "truncation": Check(run.truncation, ("response/truncated",), ("response/truncated_right",)),
    "length-growth": Check(run.length_growth, ("response/length_mean",)),
    "verifier-trouble": Check(
        run.verifier_trouble, ("reward/undecided",), ("response/count", *_AGREED)
    ),
    "wrong-group-size": Check(run.wrong_group_size, _SIGNAL),
}
"""The checks by name, in the order of `FindingName`."""

METRICS = tuple(
    dict.fromkeys(name for check in CHECKS.values() for name in (*check.needs, *check.also))
)
"""All metrics that checks read."""
