"""Checks of the policy: it is lost, does not explore, or moves too far in an update."""

from __future__ import annotations

import math

from rlobj.base.errors import Message, Setting
from rlobj.insight.diagnosis.check import Found, reads
from rlobj.insight.diagnosis.history import WINDOW, History

COLLAPSED = 0.5
"""Share of its best accuracy below which a run has collapsed. Healthy runs lose at most 0.1."""
CERTAIN = 4.0
"""Standard errors by which a fall must exceed the noise of the responses that were sampled."""
_START_ANEW = (
    "Start a new run with a lower training.learning_rate, a bounded surrogate (clip), or a kl "
    "penalty; read in samples/ what the reward pays."
)


@reads("reward/mean", "reward/std", "reward/groups", "reward/accuracy")
def collapse(history: History) -> Found | None:
    """The accuracy or the reward is lost."""
    return _accuracy_lost(history) or _reward_lost(history)


def _accuracy_lost(history: History) -> Found | None:
    now, (best, step) = history.mean("reward/accuracy"), history.best
    groups = max(history.mean("reward/groups"), 1.0) * WINDOW
    noise = math.sqrt(max(best * (1 - best), 0.0) / groups)
    if len(history.steps) < 3 or not (now < COLLAPSED * best and best - now > CERTAIN * noise):
        return None
    evidence = f"the accuracy of samples fell from {best:.3f} (step {step}) to {now:.3f}"
    return Found(evidence, _START_ANEW, {"best": best, "best_step": step, "now": now}, slower=True)


def _reward_lost(history: History) -> Found | None:
    now, (best, step) = history.mean("reward/mean"), history.best_reward
    spread = history.early("reward/std")
    fallen = spread > 0 and best - now > max(spread, CERTAIN * history.noise)
    if len(history.steps) < 3 or not fallen:
        return None
    return Found(
        f"the mean reward fell from {best:.3g} (step {step}) to {now:.3g}, by more than the "
        f"standard deviation of the first rewards, {spread:.3g}",
        _START_ANEW,
        {"best": best, "best_step": step, "now": now, "spread": spread},
        slower=True,
    )


HALVED, SPENT, EXPLODED = 0.5, 0.1, 1.5
"""Entropy as a share of that of the first steps. It may fall by half only if the reward rises; a
tenth is the end of exploration. Healthy runs do not exceed that of their first steps."""
SMALL_ENTROPY = 0.05
"""Nats; smaller changes of entropy are no finding."""
SOLVED = 0.9
"""Accuracy above which groups without signal and a low entropy are what success looks like."""


@reads("policy/entropy")
def entropy_falling(history: History) -> Found | None:
    """Entropy was lost and no reward gained, or exploration has ended too early."""
    now, early, accuracy = _entropy(history)
    spent = now <= SPENT * early and accuracy < SOLVED
    unpaid = now <= HALVED * early and not history.gained
    if not (early - now > SMALL_ENTROPY and (spent or unpaid)):
        return None
    what = "almost nothing is explored" if spent else "the reward did not rise"
    return Found(
        f"the policy's entropy fell from {early:.3g} to {now:.3g} nats a token and {what} "
        f"({history.level})",
        "Tokens with a positive advantage that are likely already lower the entropy. "
        "objective.surrogate.high=0.28, and the presets 20-entropy, clip-cov, kl-cov and stare act "
        "on them; a lower training.learning_rate delays it.",
        {"early": early, "now": now, "accuracy": accuracy},
        slower=True,
    )


@reads("policy/entropy")
def entropy_exploding(history: History) -> Found | None:
    """Entropy rises and the reward does not."""
    now, early, accuracy = _entropy(history)
    if not (now - early > SMALL_ENTROPY and now >= EXPLODED * early and not history.gained):
        return None
    bonus = any(penalty.kind == "entropy_bonus" for penalty in history.config.objective.penalties)
    if bonus:
        cure = "Lower the coefficient of the entropy bonus, or give it a target."
    else:
        cure = (
            "Tokens with a negative advantage that are likely, and positive ones that are "
            "surprising, raise the entropy: stapo drops the latter, lp-reg protects the former; a "
            "lower training.learning_rate slows both."
        )
    evidence = (
        f"the policy's entropy rose from {early:.3g} to {now:.3g} nats a token and the reward did "
        f"not ({history.level})"
    )
    return Found(
        evidence, cure, {"early": early, "now": now, "accuracy": accuracy}, slower=not bonus
    )


def _entropy(history: History) -> tuple[float, float, float]:
    """Entropy now and early, and the accuracy now; NaN before there are enough steps."""
    now = history.mean("policy/entropy") if len(history.steps) >= 2 * WINDOW else math.nan
    return now, history.early("policy/entropy"), history.mean("reward/accuracy")


LARGE_RATIO, OFTEN, HUGE_RATIO = 10.0, 3, 100.0
"""A ratio of 10 is where the dual clip of JustRL and STARE cuts. One step may exceed it; three of
ten may not, nor any step 100."""


@reads("policy/ratio_max")
def ratio_spike(history: History) -> Found | None:
    """Ratios are so large that single tokens govern the update."""
    ratios = history.last("policy/ratio_max", 2 * WINDOW)
    large = sum(ratio > LARGE_RATIO for ratio in ratios)
    if not ratios or not (large >= OFTEN or ratios[-1] > HUGE_RATIO):
        return None
    return Found(
        f"the largest ratio of a token exceeded {LARGE_RATIO:g} in {large} of the last "
        f"{len(ratios)} steps; largest {max(ratios):.3g}",
        "Bound the surrogate (clip with high=0.28 and dual=10, or cispo), make fewer "
        "training.updates_per_step, or lower training.learning_rate.",
        {"ratio_max": max(ratios), "steps": large},
        slower=True,
    )


GRADIENT_SPIKE, BEFORE, CUT = 10.0, 20, 3.0
"""Gradient norm as a multiple of the median of the 20 steps before, and of training.max_grad_norm:
a spike that is hardly cut does no harm. Healthy runs stay below 5 times the median, but pass-at-k,
where few responses have an advantage."""


@reads("train/grad_norm")
def gradient_spike(history: History) -> Found | None:
    """One gradient is far larger than those before it."""
    norms = history.last("train/grad_norm", BEFORE + 1)
    before = sorted(norm for norm in norms[:-1] if norm > 0)
    limit = history.config.training.max_grad_norm
    median = before[len(before) // 2] if len(before) >= BEFORE // 2 else math.nan
    if not norms or not median * GRADIENT_SPIKE < norms[-1] > CUT * limit:
        return None
    return Found(
        f"the gradient norm was {norms[-1]:.3g}, {norms[-1] / median:.0f} times the median of the "
        f"steps before ({median:.3g}); the update was scaled to training.max_grad_norm={limit:g}",
        f"rlobj inspect {history.run} --step {history.steps[-1]} shows the tokens with the largest "
        "gradient; rules on prob, ratio or gradient_norm drop them, as stapo and opsm do; lower "
        "training.max_grad_norm.",
        {"norm": norms[-1], "median": median},
    )


LARGE_KL = 0.1
"""Nats per token between the policies before and during the updates of a step; healthy runs stay
below 0.03. PPO implementations stop a step early at 0.015 to 0.03."""
BROKEN = 3
"""Steps of five with an update that was not finite. A step without groups has no update."""
FAST = 10
"""Steps in which only too large a learning rate destroys a policy."""


@reads("policy/kl_old", "train/skipped_updates")
def learning_rate_too_high(history: History) -> Found | None:
    """Updates are not finite, move the policy too far, or destroy it within few steps."""
    rate, kl = history.config.training.learning_rate, history.mean("policy/kl_old")
    lower = Setting("training.learning_rate", f"{rate / 10:.1g}")
    cure = Message("Lower the learning rate: ", lower)
    updates = history.together("reward/groups", "train/skipped_updates", "train/grad_norm")
    broken = sum(groups > 0 and skipped > 0 and norm != norm for groups, skipped, norm in updates)
    if broken >= BROKEN:
        evidence = f"loss or gradient were not finite in {broken} of the last {WINDOW} steps"
        return Found(evidence, cure, {"learning_rate": rate, "steps": broken}, slower=True)
    if len(history.steps) >= 3 and kl > LARGE_KL:
        evidence = f"the updates of a step move the policy by {kl:.3g} nats a token on average"
        return Found(evidence, cure, {"learning_rate": rate, "kl": kl}, slower=True)
    lost = _accuracy_lost(history) or _reward_lost(history)
    if lost is None:
        return None
    steps = history.steps[-1] - int(lost.numbers["best_step"])
    if steps > FAST:
        return None
    evidence = f"{lost.evidence}, within {steps} steps"
    return Found(evidence, cure, {"learning_rate": rate, **lost.numbers}, slower=True)
