"""The checks of a diagnosis, as a table. `docs/diagnosis.md` explains them and their thresholds.

To add one: write a condition and a row. A new name goes into `settings.training.FindingName` and
onto the page, a run that has it into test_diagnosis.py.

A condition looks at the end of a `History`. It returns what its sentence says, by name, or None
where it does not hold. It is silent where a metric that it reads is absent: comparisons with NaN
are false.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

from rlobj.insight.diagnosis.history import WINDOW, History
from rlobj.objectives.rules import Expr
from rlobj.objectives.rules.nodes import Column
from rlobj.rewards.kinds import CAUSES
from rlobj.settings.scores import single_scores
from rlobj.settings.training import FindingName

Facts = Mapping[str, float | str] | None

MANY_STEPS = 20
"""Steps after which a policy should have learned the form of an answer, and a rule have acted."""
COLLAPSED = 0.5
"""Share of its best accuracy below which a run has collapsed. Healthy runs lose at most 0.1."""
CERTAIN = 4.0
"""Standard errors by which a fall must exceed the noise of the responses that were sampled."""


def lost(history: History) -> Facts:
    """The accuracy is far below its best, or the reward by more than its first spread."""
    best, spread = history.best["reward/accuracy"][0], history.early("reward/std")
    groups = max(history.mean("reward/groups"), 1.0) * WINDOW
    noise = math.sqrt(max(best * (1 - best), 0.0) / groups)
    limits = {
        "reward/accuracy": max(COLLAPSED * best, CERTAIN * noise),
        "reward/mean": max(spread, CERTAIN * history.noise) if spread > 0 else math.nan,
    }
    for name, limit in limits.items():
        now, (best, step) = history.mean(name), history.best[name]
        if len(history.steps) >= 3 and best - now > limit:
            what = "accuracy of samples" if name == "reward/accuracy" else "mean reward"
            return {"what": what, "best": best, "best_step": step, "now": now}
    return None


SOLVED = 0.9
"""Accuracy above which groups without signal and a low entropy are what success looks like."""
NO_SIGNAL = 0.8
"""Share of groups without signal: four of five groups were sampled for nothing."""
NOTHING_KEPT = 0.01
"""Share of kept tokens below which a rule drops everything."""


def _silent_groups(history: History) -> tuple[float, float]:
    """The share of groups without signal, NaN where such a group has a gradient, and accuracy."""
    few = len(history.steps) < WINDOW or history.config.objective.scores_alone
    share = math.nan if few else history.mean("groups/without_signal_share")
    return share, history.mean("reward/accuracy")


def constant_reward(history: History) -> Facts:
    """No group has rewards that differ, and nothing or everything is right."""
    share, accuracy = _silent_groups(history)
    constant = history.mean("reward/std") == 0 if math.isnan(accuracy) else not 0 < accuracy < 1
    return {"share": share, "accuracy": accuracy} if share == 1 and constant else None


def silent_groups(history: History) -> Facts:
    """Almost no group has responses that differ in reward."""
    share, accuracy = _silent_groups(history)
    many = share == 1 or (share >= NO_SIGNAL and accuracy < SOLVED)
    if not many or constant_reward(history):
        return None
    return {"share": share, "accuracy": accuracy}


def nothing_kept(history: History) -> Facts:
    """`drop` and `keep` drop almost every token; steps without tokens say nothing about it."""
    name, objective = "objective/kept_fraction", history.config.objective
    shares = [x[name] for x in history.lines() if name in x and x.get("tokens/step") != 0]
    ruled = objective.drop_rule is not None or objective.keep_rule is not None
    if len(history.steps) < 3 or not (ruled and shares):
        return None
    kept = sum(shares) / len(shares)
    return {"kept": kept} if kept <= NOTHING_KEPT else None


HALVED, SPENT, EXPLODED = 0.5, 0.1, 1.5
"""Entropy as a share of that of the first steps. It may fall by half only if the reward rises; a
tenth is the end of exploration. Healthy runs do not exceed that of their first steps."""
SMALL_ENTROPY = 0.05
"""Nats; smaller changes of entropy are no finding."""


def entropy_moved(history: History) -> Facts:
    """Entropy was lost and no reward gained, exploration has ended early, or only entropy rises."""
    if len(history.steps) < 2 * WINDOW:
        return None
    now, early = history.mean("policy/entropy"), history.early("policy/entropy")
    facts = {"now": now, "early": early, "accuracy": history.mean("reward/accuracy")}
    if early - now > SMALL_ENTROPY and now <= SPENT * early and facts["accuracy"] < SOLVED:
        return {**facts, "moved": "fell", "what": "almost nothing is explored"}
    if early - now > SMALL_ENTROPY and now <= HALVED * early and not history.gained:
        return {**facts, "moved": "fell", "what": "the reward did not rise"}
    if now - early > SMALL_ENTROPY and now >= EXPLODED * early and not history.gained:
        return {**facts, "moved": "rose", "what": "the reward did not"}
    return None


BROKEN = 3
"""Steps of five with an update that was not finite. A step without groups has no update."""
LARGE_KL = 0.1
"""Nats per token between the policies before and during the updates of a step; healthy runs stay
below 0.03. PPO implementations stop a step early at 0.015 to 0.03."""
LARGE_RATIO, OFTEN, HUGE_RATIO = 10.0, 3, 100.0
"""A ratio of 10 is where the dual clip of JustRL and STARE cuts. One step may exceed it; three of
ten may not, nor any step 100."""
FAST = 10
"""Steps in which only too large a learning rate destroys a policy."""


def lost_fast(history: History) -> Facts:
    """Accuracy or reward were lost within steps in which only too large a rate destroys it."""
    facts = lost(history)
    steps = history.steps[-1] - int(facts["best_step"]) if facts else 0
    return {**facts, "steps": steps} if facts and steps <= FAST else None


def not_finite(history: History) -> Facts:
    """Loss or gradient are not finite."""
    broken = sum(
        line.get("reward/groups", 0) > 0
        and line.get("train/skipped_updates", 0) > 0
        and "train/grad_norm" not in line
        for line in history.lines()
    )
    return {"steps": broken} if broken >= BROKEN else None


def moved_far(history: History) -> Facts:
    """The updates of a step move the policy too far."""
    kl = history.mean("policy/kl_old")
    return {"kl": kl} if len(history.steps) >= 3 and kl > LARGE_KL else None


def large_ratios(history: History) -> Facts:
    """Ratios are so large that single tokens govern the update."""
    ratios = history.last("policy/ratio_max", 2 * WINDOW)
    large = sum(ratio > LARGE_RATIO for ratio in ratios)
    if not ratios or not (large >= OFTEN or ratios[-1] > HUGE_RATIO):
        return None
    return {"ratio_max": max(ratios), "steps": large, "of": len(ratios)}


TRUNCATED, CUT_RIGHT = 0.25, 0.5
"""Share of responses that are cut, and share of these that must be right for it to do no harm."""


def truncated(history: History) -> Facts:
    """Many responses are cut, and are wrong for it."""
    share, right = history.mean("response/truncated"), history.mean("response/truncated_right")
    if math.isnan(right):  # in another trainer: at most all right responses were cut
        right = history.mean("reward/accuracy") / share if share else math.nan
    enough = len(history.steps) >= 3 and history.config.sampling.max_tokens > 1
    if not (enough and share >= TRUNCATED and right < CUT_RIGHT):
        return None
    return {"share": share, "right": right}


SAMPLER_GAP, GAP_GROWTH = 1e-3, 10.0
"""Nats per token; and a multiple of the first step's gap, which is 0.01 in bfloat16. Engines that
are right differ by 1e-6 in float32."""


def sampler_drift(history: History) -> Facts:
    """The sampler's log-probs are not the policy's; samples that are old on purpose may differ."""
    old = history.config.sampling.ahead
    name = "sampler/kl" if old else "sampler/logprob_gap"
    gap, first = history.mean(name), history.first(name)
    limit = LARGE_KL if old else max(SAMPLER_GAP, GAP_GROWTH * first)
    return {"gap": gap, "first": first} if gap > limit else None


UNDECIDED, MORE_UNDECIDED = 0.05, 0.02
"""Share of responses that were not compared, and its rise since the first steps. A policy that
learns the form writes answers that cannot be read at first, so these count later."""
UNREAD, MORE_UNREAD = 0.5, 0.15
"""Share of responses without an answer, beyond those that are cut, and its rise. A policy that
learns the form has a high share at first, and its reward rises. The rise exceeds two standard
errors of a difference if each step has 32 groups."""


def not_compared(history: History) -> Facts:
    """Responses have no answer to read, or are not compared with their gold answers."""
    causes = [cause for cause in CAUSES if history.knows(f"reward/{cause}_share")]
    now, early = (
        {
            "undecided": mean("reward/undecided") / max(mean("response/count"), 1.0),
            **{cause: mean(f"reward/{cause}_share") for cause in causes},
        }
        for mean in (history.mean, history.early)
    )
    cut = history.mean("response/truncated")
    no_answer, first = now.pop("no_answer", 0.0), early.pop("no_answer", 0.0)
    unread = no_answer - (0.0 if math.isnan(cut) else cut)
    strange = sum(now.values())
    limits, before = (sum(x.values()) - x.get("unreadable", 0.0) for x in (now, early))
    unlearned = len(history.steps) >= MANY_STEPS and not history.gained
    if not (
        limits >= UNDECIDED
        or limits - before >= MORE_UNDECIDED
        or min(unread, no_answer - first) >= MORE_UNREAD
        or (unlearned and (unread >= UNREAD or strange >= UNDECIDED))
    ):
        return None
    now |= {"no_answer": no_answer} if no_answer else {}
    largest = sorted(((part, name) for name, part in now.items() if part >= 5e-4), reverse=True)
    parts = ", ".join(f"{name.replace('_', ' ')} {part:.1%}" for part, name in largest)
    return {"parts": parts, **now} if history.config.objective.reads_rewards else None


ENDLESS = -5.0
"""Nats at the ends of responses below which a teacher does not know the end token."""


def other_end(history: History) -> Facts:
    """A teacher has another end token."""
    for name in single_scores(history.config.scores):
        gap, end = (history.mean(f"score/{name}/{kind}") for kind in ("gap", "end_gap"))
        if end < min(ENDLESS, gap + ENDLESS):
            return {"score": name, "gap": gap, "end": end}
    return None


BLIND, UNTRAINED = 0.01, 40
"""Share of the returns' variance that a value explains where it is as good as their mean: a
constant explains 0, and noise less. Steps in which it learns that mean; good ones explain 0.05 in
half of them."""


def blind_value(history: History) -> Facts:
    """The value predicts returns no better than their mean; it had time to learn."""
    critic, explained = history.config.critic, history.mean("value/explained_variance")
    alone = critic.value_warmup if critic else 0
    early = not history.steps or history.steps[-1] < max(UNTRAINED, alone + WINDOW)
    constant = history.mean("reward/std") == 0 or history.mean("reward/accuracy") >= SOLVED
    if critic is None or early or constant or not explained < BLIND:
        return None
    return {"explained": explained}


MANY_TOKENS = 50_000
"""Tokens after which a rule should have acted: rare rules select 1 token in 10,000."""


def inert(history: History) -> Facts:
    """A setting of the objective has no effect in this run, and has one in its preset."""
    return {"inert": "; ".join(history.inert)} if history.inert else None


def rule_never_fires(history: History) -> Facts:
    """`drop` or `keep` has not dropped a token yet."""
    tokens, objective = history.total("tokens/step"), history.config.objective
    few = len(history.steps) < MANY_STEPS or tokens < MANY_TOKENS
    if few or history.total("tokens/dropped") > 0 or not history.knows("tokens/dropped"):
        return None
    rules = {"drop": objective.drop_rule, "keep": objective.keep_rule}
    active = [f"{name}: {r}" for name, r in rules.items() if r is not None and not _guards(r)]
    return {"tokens": tokens, "rules": "; ".join(active)} if active else None


def _guards(rule: Expr) -> bool:
    """Whether a rule acts only when two policies are far apart, which is rare in a sound run."""
    names = {node.name for node in rule.walk() if isinstance(node, Column)}
    apart = {"ratio", "sampler_gap", "ref_gap", "proxy_gap"}
    return bool(names & apart) or any(
        {name, f"old_{name}"} <= names for name in ("prob", "logprob", "surprisal", "entropy")
    )


NAMES: tuple[FindingName, ...] = get_args(FindingName)


@dataclass(frozen=True)
class Check:
    """A row: a condition, and what is said where it holds. Of one name the first such row speaks.

    Attributes:
        name: of the finding.
        reads: metrics without which it cannot be checked; * stands for the name of a score.
        condition: one of those above.
        sentence: a format of what the condition returns and of `history`.
        advice: what would have touched it: settings and rules; a format, too.
    """

    name: FindingName
    reads: tuple[str, ...]
    condition: Callable[[History], Facts]
    sentence: str
    advice: str


_LOWER = "Divide training.learning_rate={history.config.training.learning_rate:.3g} by 10."
CHECKS = (
    Check(
        "collapse",
        ("reward/mean", "reward/std"),
        lost,
        "the {what} fell from {best:.3f} (step {best_step}) to {now:.3f}",
        "Start a new run with a lower training.learning_rate, a clip or a kl penalty.",
    ),
    Check(
        "no-signal",
        ("groups/without_signal_share",),
        silent_groups,
        "{share:.0%} of the groups have equal rewards, so that their advantages are 0 "
        "({history.level})",
        "Use easier or harder problems, a larger sampling.group_size, or sampling.dynamic={{}}.",
    ),
    Check(
        "no-signal",
        ("objective/kept_fraction", "tokens/step"),
        nothing_kept,
        "drop and keep leave {kept:.2%} of the tokens: almost nothing is trained",
        "Check the rule's comparison and threshold: rlobj presets show says what it selects.",
    ),
    Check(
        "constant-reward",
        ("groups/without_signal_share",),
        constant_reward,
        "no group has rewards that differ: they never pay, or always ({history.level})",
        "If nothing is right, check the reward in samples/, the template, and sampling.max_tokens; "
        "if everything is, train on harder problems.",
    ),
    Check(
        "entropy",
        ("policy/entropy",),
        entropy_moved,
        "the policy's entropy {moved} from {early:.3g} to {now:.3g} nats a token and {what} "
        "({history.level})",
        "Lower training.learning_rate. Against a fall: objective.surrogate.high=0.28, 20-entropy, "
        "clip-cov, kl-cov or stare. Against a rise: stapo, or a smaller entropy bonus.",
    ),
    Check(
        "update-too-large",
        ("train/skipped_updates",),
        not_finite,
        "loss or gradient were not finite in {steps} of the last 5 steps",
        _LOWER,
    ),
    Check(
        "update-too-large",
        ("policy/kl_old",),
        moved_far,
        "the updates of a step move the policy by {kl:.3g} nats a token on average",
        _LOWER,
    ),
    Check(
        "update-too-large",
        ("reward/mean", "reward/std"),
        lost_fast,
        "the {what} fell from {best:.3f} to {now:.3f} within {steps} steps",
        _LOWER,
    ),
    Check(
        "update-too-large",
        ("policy/ratio_max",),
        large_ratios,
        "the largest ratio of a token exceeded 10 in {steps} of the last {of} steps; largest "
        "{ratio_max:.3g}",
        "Use clip with dual=10, or cispo; or lower training.learning_rate or updates_per_step.",
    ),
    Check(
        "truncation",
        ("response/truncated", "reward/accuracy"),
        truncated,
        "{share:.0%} of the responses are cut at a limit; {right:.0%} of these are right",
        "Raise sampling.max_tokens={history.config.sampling.max_tokens} or environment.max_turns, "
        "or use rewards.overlong.",
    ),
    Check(
        "sampler-drift",
        ("sampler/logprob_gap",),
        sampler_drift,
        "sampler and policy differ by {gap:.3g} nats a token (first step {first:.3g})",
        "Check the sampler's weights and temperature. Lower sampling.async_depth, or use "
        "objective.mismatch={{kind: truncate}}.",
    ),
    Check(
        "verifier-trouble",
        ("reward/undecided", "response/count"),
        not_compared,
        "responses were not compared with their gold answers: {parts}",
        "Read the column reason in samples/. Ask for the form of the answer in data.template; see "
        "rewards.deadline for timeout. In another trainer, look for a reward of None or NaN.",
    ),
    Check(
        "teacher-trouble",
        ("score/*/end_gap",),
        other_end,
        "the score {score} gives the tokens that end responses {end:.3g} nats less than the "
        "policy, and all tokens {gap:.3g}: it ends responses with another token",
        "Use scores.{score}.end=ID, the id of its own end token; or a teacher with the policy's.",
    ),
    Check(
        "value-trouble",
        ("value/explained_variance",),
        blind_value,
        "the value explains {explained:.1%} of the variance of its returns: their mean is as good",
        "Use another scores.{history.config.objective.critic}.learning_rate="
        "{history.config.critic.learning_rate:.3g}, more updates or value_warmup; or grpo.",
    ),
    Check("inert-setting", ("reward/mean",), inert, "{inert}", "Change or remove it."),
    Check(
        "inert-setting",
        ("tokens/dropped", "tokens/step"),
        rule_never_fires,
        "none of {tokens:,.0f} tokens was dropped by {rules}: the run equals one without it",
        "Count what each part of it selects: rlobj replay RUN --rule PART.",
    ),
)
"""All rows, grouped by name."""
