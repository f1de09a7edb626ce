"""Checks of the responses: cut, long, sampled from another policy, or not compared."""

from __future__ import annotations

import math

from rlobj.base.errors import Message, Setting
from rlobj.insight.diagnosis.check import Found, reads
from rlobj.insight.diagnosis.checks.policy import LARGE_KL
from rlobj.insight.diagnosis.history import WINDOW, History
from rlobj.rewards.kinds import NOT_COMPARED

SAMPLER_GAP, GAP_GROWTH = 1e-3, 10.0
"""Nats per token; and a multiple of the first step's gap, which is 0.01 in bfloat16. Engines that
are right differ by 1e-6 in float32."""


@reads("sampler/logprob_gap", also=["sampler/kl"])
def sampler_drift(history: History) -> Found | None:
    """The sampler's log-probs are not the policy's."""
    if history.config.sampling.async_depth:
        gap, first = history.mean("sampler/kl"), history.first("sampler/kl")
        if not gap > LARGE_KL:
            return None
        return Found(
            f"KL divergence between sampler and policy: {gap:.3g} nats a token (first step "
            f"{first:.3g})",
            Message(
                "Lower sampling.async_depth, or use ",
                Setting("objective.mismatch", "{kind: truncate}"),
            ),
            {"gap": gap, "first": first},
        )
    gap, first = history.mean("sampler/logprob_gap"), history.first("sampler/logprob_gap")
    if not gap > max(SAMPLER_GAP, GAP_GROWTH * first):
        return None
    return Found(
        f"mean difference of log-probs between sampler and policy: {gap:.3g} nats a token (first "
        f"step {first:.3g})",
        "The sampler does not use the policy's weights or its temperature: check its sync.",
        {"gap": gap, "first": first},
    )


TRUNCATED, CUT_RIGHT = 0.25, 0.5
"""Share of responses that are cut, and share of these that must be right for it to do no harm."""


@reads("response/truncated_right", "reward/accuracy", also=["response/truncated"])
def truncation(history: History) -> Found | None:
    """Many responses are cut at max_tokens, and are wrong for it."""
    if history.knows("turns/at_tokens"):  # `turn_limit_reached` says it
        return None
    share, right = history.mean("response/truncated"), history.mean("response/truncated_right")
    if math.isnan(right):  # in another trainer: at most all right responses were cut
        right = history.mean("reward/accuracy") / share if share else math.nan
    longest, harmful = history.config.sampling.max_tokens, share >= TRUNCATED and right < CUT_RIGHT
    if longest == 1 or len(history.steps) < 3 or not harmful:
        return None
    return Found(
        f"{share:.0%} of the responses are cut at {longest} tokens; {right:.0%} of these are right",
        f"Raise sampling.max_tokens={2 * longest}; or shape the reward (rewards.overlong, as dapo "
        "does).",
        {"share": share, "right": right},
    )


LONGER = 1.5
"""Response length as a multiple of that of the first steps."""


@reads("response/length_mean")
def length_growth(history: History) -> Found | None:
    """Responses get longer and the reward does not rise."""
    now, early = history.mean("response/length_mean"), history.early("response/length_mean")
    longer = now >= LONGER * early and not history.gained
    if len(history.steps) < 2 * WINDOW or not longer:
        return None
    return Found(
        f"responses grew from {early:.3g} to {now:.3g} tokens and the reward did not rise",
        "Divide by a constant instead of the response's length (fixed_length, as dr-grpo does), or "
        "punish length with rewards.overlong.",
        {"early": early, "now": now},
    )


@reads(
    "reward/undecided",
    also=[
        "response/count",
        "reward/no_answer_share",
        *(f"reward/{cause}_share" for cause in NOT_COMPARED),
        "response/truncated",
    ],
)
def verifier_trouble(history: History) -> Found | None:
    """Responses are not compared, or have no answer to read."""
    if not history.config.objective.reads_rewards:
        return None
    return _unread(history) or _not_compared(history)


MANY_STEPS = 20
"""Steps after which a policy should have learned the form of an answer."""
UNREAD, MORE_UNREAD = 0.5, 0.15
"""Share of responses without an answer that can be read, beyond those that are cut, and its rise. A
policy that learns the form has a high share at first, and its reward rises. The rise exceeds two
standard errors of a difference if each step has 32 groups."""


def _unread(history: History) -> Found | None:
    unread = history.mean("reward/no_answer_share")
    early = history.early("reward/no_answer_share")
    cut = (0.0, *history.last("response/truncated"))
    whole = unread - sum(cut) / max(len(cut) - 1, 1)
    high = whole >= UNREAD and len(history.steps) >= MANY_STEPS and not history.gained
    if not (high or min(whole, unread - early) >= MORE_UNREAD):
        return None
    return Found(
        f"{unread:.0%} of the responses are graded wrong because they have no answer that can be "
        f"read ({early:.0%} in the first steps)",
        "Read such responses in samples/. If the form of the answer is new to the policy, ask for "
        "it in data.template. If the share rises, the policy loses the form: lower "
        "training.learning_rate, or pay for the form with a reward of its own.",
        {"share": unread, "early": early},
        slower=True,
    )


UNDECIDED, MORE_UNDECIDED = 0.05, 0.02
"""Share of responses that were not compared, and its rise since the first steps. A policy that
learns the form writes answers that cannot be read at first, so these count later."""


def _not_compared(history: History) -> Found | None:
    causes = [cause for cause in NOT_COMPARED if history.knows(f"reward/{cause}_share")]
    now, before = (
        {
            "undecided": mean("reward/undecided") / max(mean("response/count"), 1.0),
            **{cause: mean(f"reward/{cause}_share") for cause in causes},
        }
        for mean in (history.mean, history.early)
    )
    share, early = sum(now.values()), sum(before.values())
    limits, first = share - now.get("unreadable", 0.0), early - before.get("unreadable", 0.0)
    stuck = share >= UNDECIDED and len(history.steps) >= MANY_STEPS and not history.gained
    if not (stuck or limits >= UNDECIDED or limits - first >= MORE_UNDECIDED):
        return None
    largest = sorted(((part, name) for name, part in now.items() if part >= 5e-4), reverse=True)
    parts = ", ".join(f"{name.replace('_', ' ')} {part:.1%}" for part, name in largest)
    if history.config.output.samples_every > 0:
        cure = (
            "Read such responses in samples/: the column reason says why. Undecided ones are not "
            "trained on: see their gold answers. The others are wrong: see rewards.deadline for "
            "timeout, and for unreadable and too large, whether your problems need such answers."
        )
    else:  # in another trainer
        cure = "Their rewards are None or NaN. Look at what your reward function returns for them."
    evidence = (
        f"{share:.1%} of the responses were not compared with their gold answers ({early:.1%} in "
        f"the first steps): {parts}"
    )
    return Found(evidence, cure, {"share": share, "early": early, **now})
