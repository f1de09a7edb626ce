"""Checks of what the policy is trained with: rules, settings, sampler, lengths, gold answers."""

from __future__ import annotations

import math

from rlobj.insight.diagnosis.history import WINDOW, Found, History
from rlobj.insight.diagnosis.policy_checks import LARGE_KL
from rlobj.objectives.rules import Column, Expr

MANY_TOKENS, MANY_STEPS = 50_000, 20
"""Tokens and steps after which a rule should have acted: rare rules select 1 token in 10,000."""
EVERYTHING = 0.01
"""Share of kept tokens below which a rule drops everything."""
SAMPLER_GAP, GAP_GROWTH = 1e-3, 10.0
"""Nats per token; and a multiple of the first step's gap, which is 0.01 in bfloat16. Engines that
are right differ by 1e-6 in float32."""
TRUNCATED, CUT_RIGHT = 0.25, 0.5
"""Share of responses that are cut, and share of these that must be right for it to do no harm."""
LONGER = 1.5
"""Response length as a multiple of that of the first steps."""
UNDECIDED = 0.05
"""Share of responses without a verdict. They are in no group and no mean."""
DISPUTED, FEW_GROUPS = 0.1, 5
"""Share of unanimous groups whose common answer is graded wrong, and their smallest number.
Healthy runs have 0.01; with 20% wrong gold answers it is 0.2."""
HALF_SIGNAL, LARGEST_GROUP = 0.5, 128


def rule_never_fires(h: History) -> Found | None:
    """`drop` or `keep` has not left out a token yet."""
    tokens, counts = h.total("tokens/step"), ("tokens/dropped", "objective/dropped_tokens")
    dropped = sum(map(h.total, counts))  # older runs have the second one alone
    few = len(h.steps) < MANY_STEPS or tokens < MANY_TOKENS
    if few or dropped > 0 or not any(map(h.knows, counts)):
        return None
    objective = h.config.objective
    rules = {"drop": objective.drop_rule, "keep": objective.keep_rule}
    active = {name: rule for name, rule in rules.items() if rule is not None and not _guards(rule)}
    if not active:
        return None
    text = "; ".join(f"{name}: {rule}" for name, rule in active.items())
    return Found.of("rule-never-fires", {"tokens": tokens}, rules=text)


def _guards(rule: Expr) -> bool:
    """Whether a rule acts only when two policies are far apart, which is rare in a sound run."""
    names = {node.name for node in rule.walk() if isinstance(node, Column)}
    apart = {"ratio", "sampler_gap", "ref_gap", "proxy_gap"}
    return bool(names & apart) or any(
        {name, f"old_{name}"} <= names for name in ("prob", "logprob", "surprisal", "entropy")
    )


def rule_fires_on_everything(h: History) -> Found | None:
    """`drop` and `keep` leave out almost every token."""
    kept = h.mean("objective/kept_fraction")
    if len(h.steps) < 3 or not kept <= EVERYTHING:
        return None
    return Found.of("rule-fires-on-everything", {"kept": kept})


def inert_setting(h: History) -> Found | None:
    """A setting of the objective has no effect in this run, and has one in its preset."""
    if not h.inert:
        return None
    return Found.of("inert-setting", {"settings": len(h.inert)}, inert="; ".join(h.inert))


def sampler_drift(h: History) -> Found | None:
    """The sampler's log-probs are not the policy's."""
    ahead = h.config.sampling.async_depth
    name = "sampler/kl" if ahead else "sampler/logprob_gap"
    gap, first = h.mean(name), h.first(name)
    limit = LARGE_KL if ahead else max(SAMPLER_GAP, GAP_GROWTH * first)
    if not gap > limit:
        return None
    return Found.of("sampler-far-ahead" if ahead else "sampler-drift", {"gap": gap, "first": first})


def truncation(h: History) -> Found | None:
    """Many responses are cut at max_tokens, and are wrong for it."""
    share, right = h.mean("response/truncated"), h.mean("response/truncated_right")
    if math.isnan(right):  # an older run: at most all right responses were cut
        right = h.mean("reward/accuracy") / share if share else math.nan
    longest = h.config.sampling.max_tokens
    if longest == 1 or len(h.steps) < 3 or not (share >= TRUNCATED and right < CUT_RIGHT):
        return None
    numbers = {"share": share, "right": right}
    return Found.of("truncation", numbers, longest=longest, twice=2 * longest)


def length_growth(h: History) -> Found | None:
    """Responses get longer and the reward does not rise."""
    now, early = h.mean("response/length_mean"), h.early("response/length_mean")
    if len(h.steps) < 2 * WINDOW or not (now >= LONGER * early and not h.gained):
        return None
    return Found.of("length-growth", {"early": early, "now": now})


def verifier_trouble(h: History) -> Found | None:
    """Responses get no verdict, or gold answers look wrong."""
    undecided = h.mean("reward/undecided") / max(h.mean("response/count"), 1.0)
    if undecided >= UNDECIDED:
        return Found.of("undecided-responses", {"undecided": undecided})
    wrong = sum(h.last("groups/agreed_wrong", MANY_STEPS))
    right = sum(h.last("groups/agreed_right", MANY_STEPS))
    if not (wrong >= FEW_GROUPS and right > wrong and wrong >= DISPUTED * (wrong + right)):
        return None
    return Found.of("disputed-answers", {"wrong": wrong, "right": right}, all=wrong + right)


def wrong_group_size(h: History) -> Found | None:
    """Groups have no signal because they are too small for the accuracy."""
    size, p = h.config.sampling.group_size, h.mean("reward/accuracy")
    share = h.mean("groups/without_signal_share")
    expected = _all_equal(p, size)
    fallen = p < h.best[0] / 2  # no question of the group's size
    if len(h.steps) < WINDOW or fallen or not (HALF_SIGNAL <= share < 1 and 0 < p < 0.75):
        return None
    enough = next((n for n in range(2, LARGEST_GROUP) if _all_equal(p, n) < HALF_SIGNAL / 2), 0)
    if expected < share / 2 or enough <= size:  # problems differ: larger groups would not help
        return None
    numbers = {"share": share, "accuracy": p, "enough": enough}
    return Found.of("wrong-group-size", numbers, size=size, then=_all_equal(p, enough))


def _all_equal(p: float, size: int) -> float:
    """The probability that independent responses are all right or all wrong."""
    return p**size + (1 - p) ** size
