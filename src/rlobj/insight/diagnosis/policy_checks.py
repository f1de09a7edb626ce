"""Checks of the policy: its rewards, its entropy and its updates."""

from __future__ import annotations

import math

from rlobj.insight.diagnosis.history import WINDOW, Found, History

COLLAPSED = 0.5
"""Share of its best accuracy below which a run has collapsed. Healthy runs lose at most 0.1."""
CERTAIN = 4.0
"""Standard errors by which a fall must exceed the noise of the responses that were sampled."""
SAME_RESPONSE = 0.5
"""Share of all responses with the same text, although the answers of their problems differ."""
NO_SIGNAL = 0.8
"""Share of groups without signal: four of five groups were sampled for nothing."""
SOLVED = 0.9
"""Accuracy above which groups without signal and a low entropy are what success looks like."""
HALVED, SPENT, EXPLODED = 0.5, 0.1, 1.5
"""Entropy as a share of that of the first steps. It may fall by half only if the reward rises; a
tenth is the end of exploration. Healthy runs do not exceed that of their first steps."""
SMALL_ENTROPY = 0.05
"""Nats; smaller changes of entropy are no finding."""
LARGE_RATIO, OFTEN, HUGE_RATIO = 10.0, 3, 100.0
"""A ratio of 10 is where the dual clip of JustRL and STARE cuts. One step may exceed it; three of
ten may not, nor any step 100."""
GRADIENT_SPIKE, BEFORE, CUT = 10.0, 20, 3.0
"""Gradient norm as a multiple of the median of the 20 steps before, and of training.max_grad_norm:
a spike that is hardly cut does no harm. Healthy runs stay below 5 times the median, but pass-at-k,
where few responses have an advantage."""
LARGE_KL = 0.1
"""Nats per token between the policies before and during the updates of a step; healthy runs stay
below 0.03. PPO implementations stop a step early at 0.015 to 0.03."""
BROKEN = 3
"""Steps of five with an update that was not finite. A step without groups has no update."""
FAST = 10
"""Steps in which only too large a learning rate destroys a policy."""


def collapse(h: History) -> Found | None:
    """The accuracy or the reward is lost, or all problems get the same response."""
    return _accuracy_lost(h) or _reward_lost(h) or _same_response(h)


def _accuracy_lost(h: History) -> Found | None:
    now, (best, step) = h.mean("reward/accuracy"), h.best
    groups = max(h.mean("reward/groups"), 1.0) * WINDOW
    noise = math.sqrt(max(best * (1 - best), 0.0) / groups)
    if len(h.steps) < 3 or not (now < COLLAPSED * best and best - now > CERTAIN * noise):
        return None
    return Found.of("accuracy-lost", {"best": best, "best_step": step, "now": now})


def _reward_lost(h: History) -> Found | None:
    now, (best, step), spread = h.mean("reward/mean"), h.best_reward, h.early("reward/std")
    if len(h.steps) < 3 or not (spread > 0 and best - now > max(spread, CERTAIN * h.noise)):
        return None
    numbers = {"best": best, "best_step": step, "now": now, "spread": spread}
    return Found.of("reward-lost", numbers)


def _same_response(h: History) -> Found | None:
    same, gold = h.mean("response/most_common"), h.mean("response/most_common_gold")
    if len(h.steps) < 3 or not (same >= SAME_RESPONSE and same >= 2 * gold):
        return None
    return Found.of("same-response", {"same_response": same, "same_answer": gold})


def groups_without_signal(h: History) -> Found | None:
    """Almost no group has responses that differ in reward."""
    share, accuracy = h.mean("groups/without_signal_share"), h.mean("reward/accuracy")
    if len(h.steps) < WINDOW or not (share == 1 or (share >= NO_SIGNAL and accuracy < SOLVED)):
        return None
    text = "groups-without-signal"
    if not 0 < accuracy < 1:  # also NaN
        text = "groups-all-wrong" if accuracy <= 0 else "groups-all-right"
    numbers = {"share": share, "accuracy": accuracy}
    return Found.of(text, numbers, reward=h.mean("reward/mean"))


def entropy_falling(h: History) -> Found | None:
    """Entropy was lost and no reward gained, or exploration has ended too early."""
    now, early, accuracy = _entropy(h)
    spent = now <= SPENT * early and accuracy < SOLVED
    if not (early - now > SMALL_ENTROPY and (spent or (now <= HALVED * early and not h.gained))):
        return None
    what = "almost nothing is explored" if spent else "the reward did not rise"
    numbers = {"early": early, "now": now, "accuracy": accuracy}
    return Found.of("entropy-falling", numbers, what=what)


def entropy_exploding(h: History) -> Found | None:
    """Entropy rises and the reward does not."""
    now, early, accuracy = _entropy(h)
    if not (now - early > SMALL_ENTROPY and now >= EXPLODED * early and not h.gained):
        return None
    bonus = any(each.kind == "entropy_bonus" for each in h.config.objective.penalties)
    numbers = {"early": early, "now": now, "accuracy": accuracy}
    return Found.of("bonus-exploding" if bonus else "entropy-exploding", numbers)


def _entropy(h: History) -> tuple[float, float, float]:
    """Entropy now and early, and the accuracy now; NaN before there are enough steps."""
    now = h.mean("policy/entropy") if len(h.steps) >= 2 * WINDOW else math.nan
    return now, h.early("policy/entropy"), h.mean("reward/accuracy")


def ratio_spike(h: History) -> Found | None:
    """Ratios are so large that single tokens govern the update."""
    ratios = h.last("policy/ratio_max", 2 * WINDOW)
    large = sum(ratio > LARGE_RATIO for ratio in ratios)
    if not ratios or not (large >= OFTEN or ratios[-1] > HUGE_RATIO):
        return None
    numbers = {"ratio_max": max(ratios), "steps": large}
    return Found.of("ratio-spike", numbers, limit=LARGE_RATIO, seen=len(ratios))


def gradient_spike(h: History) -> Found | None:
    """One gradient is far larger than those before it."""
    norms = h.last("train/grad_norm", BEFORE + 1)
    before = sorted(norm for norm in norms[:-1] if norm > 0)
    limit = h.config.training.max_grad_norm
    middle = before[len(before) // 2] if len(before) >= BEFORE // 2 else math.nan
    if not norms or not middle * GRADIENT_SPIKE < norms[-1] > CUT * limit:
        return None
    numbers = {"norm": norms[-1], "median": middle}
    return Found.of("gradient-spike", numbers, times=norms[-1] / middle, limit=limit)


def learning_rate_too_high(h: History) -> Found | None:
    """Updates are not finite, move the policy too far, or destroy it within few steps."""
    rate, kl = h.config.training.learning_rate, h.mean("policy/kl_old")
    lost = _accuracy_lost(h) or _reward_lost(h)
    updates = h.together("reward/groups", "train/skipped_updates", "train/grad_norm")
    broken = sum(groups > 0 and skipped > 0 and norm != norm for groups, skipped, norm in updates)
    numbers = {"learning_rate": rate}
    lower = rate / 10
    if broken >= BROKEN:
        numbers["steps"] = broken
        return Found.of("updates-broken", numbers, window=WINDOW, lower=lower)
    if len(h.steps) >= 3 and kl > LARGE_KL:
        return Found.of("updates-too-large", {**numbers, "kl": kl}, lower=lower)
    if lost is not None and (steps := h.steps[-1] - int(lost.numbers["best_step"])) <= FAST:
        words = {"lost": lost.evidence, "steps": steps, "lower": lower}
        return Found.of("lost-fast", {**numbers, **lost.numbers}, **words)
    return None
