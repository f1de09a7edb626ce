"""Checks of the objective: it has no signal, or parts of it do not do what they should."""

from __future__ import annotations

import math

from rlobj.base.errors import Message, Setting
from rlobj.insight.diagnosis.check import Found, reads
from rlobj.insight.diagnosis.checks.policy import SOLVED
from rlobj.insight.diagnosis.history import WINDOW, History
from rlobj.objectives.rules import Expr
from rlobj.objectives.rules.nodes import Column

NO_SIGNAL = 0.8
"""Share of groups without signal: four of five groups were sampled for nothing."""


@reads("groups/without_signal_share")
def groups_without_signal(history: History) -> Found | None:
    """Almost no group has responses that differ in reward."""
    if history.config.objective.scores_alone:  # such a group has a gradient
        return None
    share, accuracy = history.mean("groups/without_signal_share"), history.mean("reward/accuracy")
    many = share == 1 or (share >= NO_SIGNAL and accuracy < SOLVED)
    if len(history.steps) < WINDOW or not many:
        return None
    if accuracy <= 0:
        cure = "Nothing is right: check the reward in samples/, the template, and max_tokens."
    elif accuracy >= 1:
        cure = "Everything is right: train on harder problems, or check what the reward tests."
    else:
        cure = "Use problems of medium difficulty; sampling.dynamic={} replaces such groups."
    reward = "" if math.isnan(accuracy) else f", mean reward {history.mean('reward/mean'):.3g}"
    evidence = (
        f"{share:.0%} of the groups have equal rewards, so that their advantages are 0; "
        f"{history.level}{reward}"
    )
    return Found(evidence, cure, {"share": share, "accuracy": accuracy})


HALF_SIGNAL, LARGEST_GROUP = 0.5, 128
"""Share of groups without signal that is too large: the size that is advised must have less than
half of it; and the size below which it is sought."""


@reads("reward/accuracy", also=["groups/without_signal_share"])
def wrong_group_size(history: History) -> Found | None:
    """Groups have no signal because they are too small for the accuracy."""
    size, accuracy = history.config.sampling.group_size, history.mean("reward/accuracy")
    share = history.mean("groups/without_signal_share")
    fallen = accuracy < history.best[0] / 2  # no question of the group's size
    common = HALF_SIGNAL <= share < 1 and 0 < accuracy < 0.75
    if len(history.steps) < WINDOW or fallen or not common:
        return None
    sizes = range(2, LARGEST_GROUP)
    enough = next((n for n in sizes if _all_equal(accuracy, n) < HALF_SIGNAL / 2), 0)
    # where problems differ, larger groups would not help
    if _all_equal(accuracy, size) < share / 2 or enough <= size:
        return None
    return Found(
        f"with an accuracy of {accuracy:.3f}, {size} responses are often all right or all wrong: "
        f"{share:.0%} of the groups have no signal",
        f"sampling.group_size={enough} makes that {_all_equal(accuracy, enough):.0%} on such "
        "problems.",
        {"share": share, "accuracy": accuracy, "enough": enough},
    )


def _all_equal(accuracy: float, size: int) -> float:
    """The probability that independent responses are all right or all wrong."""
    return accuracy**size + (1 - accuracy) ** size


MANY_TOKENS, MANY_STEPS = 50_000, 20
"""Tokens and steps after which a rule should have acted: rare rules select 1 token in 10,000."""


@reads("tokens/dropped", also=["tokens/step"])
def rule_never_fires(history: History) -> Found | None:
    """`drop` or `keep` has not dropped a token yet."""
    tokens = history.total("tokens/step")
    few = len(history.steps) < MANY_STEPS or tokens < MANY_TOKENS
    if few or history.total("tokens/dropped") > 0 or not history.knows("tokens/dropped"):
        return None
    objective = history.config.objective
    rules = {"drop": objective.drop_rule, "keep": objective.keep_rule}
    active = [f"{name}: {r}" for name, r in rules.items() if r is not None and not _guards(r)]
    if not active:
        return None
    return Found(
        f"none of {tokens:,.0f} tokens was dropped by {'; '.join(active)}: the run equals one "
        "without it",
        "Compare its thresholds with the columns in records/ and tables/.",
        {"tokens": tokens},
    )


def _guards(rule: Expr) -> bool:
    """Whether a rule acts only when two policies are far apart, which is rare in a sound run."""
    names = {node.name for node in rule.walk() if isinstance(node, Column)}
    apart = {"ratio", "sampler_gap", "ref_gap", "proxy_gap"}
    return bool(names & apart) or any(
        {name, f"old_{name}"} <= names for name in ("prob", "logprob", "surprisal", "entropy")
    )


EVERYTHING = 0.01
"""Share of kept tokens below which a rule drops everything."""


@reads("objective/kept_fraction", also=["tokens/step"])
def rule_fires_on_everything(history: History) -> Found | None:
    """`drop` and `keep` drop almost every token; steps without tokens say nothing about it."""
    steps = history.together("objective/kept_fraction", "tokens/step")
    shares = [kept for kept, tokens in steps if tokens != 0 and not math.isnan(kept)]
    objective = history.config.objective
    ruled = objective.drop_rule is not None or objective.keep_rule is not None
    if len(history.steps) < 3 or not (ruled and shares):
        return None
    kept = sum(shares) / len(shares)
    if kept > EVERYTHING:
        return None
    evidence = f"drop and keep leave {kept:.2%} of the tokens: almost nothing is trained"
    cure = "Check the rule's comparison and threshold: rlobj explain says what it selects."
    return Found(evidence, cure, {"kept": kept})


@reads("reward/mean")
def inert_setting(history: History) -> Found | None:
    """A setting of the objective has no effect in this run, and has one in its preset."""
    if not history.inert:
        return None
    cure = "Change or remove it."
    return Found("; ".join(history.inert), cure, {"settings": len(history.inert)})


ENDLESS = -5.0
"""Nats at the ends of responses below which a teacher does not know the end token."""


@reads("score/NAME/end_gap", also=["score/NAME/gap"])
def teacher_trouble(history: History) -> Found | None:
    """A teacher has another end token."""
    for name in history.config.scores:
        gap, end = (history.mean(f"score/{name}/{kind}") for kind in ("gap", "end_gap"))
        if end < min(ENDLESS, gap + ENDLESS):
            return Found(
                f"the score {name} gives the tokens that end responses {end:.3g} nats less than "
                f"the policy, and all tokens {gap:.3g}: it ends responses with another token, so "
                "responses get longer",
                Message(
                    "Use ",
                    Setting(f"scores.{name}.end", "ID"),
                    ", the id of its own end token; or a teacher with the policy's.",
                ),
                {"gap": gap, "end": end},
            )
    return None
