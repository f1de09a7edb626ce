"""The checks of a diagnosis: each is a function of the metrics so far.

A check looks at the end of a `History` and returns what it found there, or None. It is silent where
a metric that it reads is absent. `docs/diagnosis.md` explains each check and its thresholds.

To add one: write the function, what it says into texts.yaml, the metrics that it reads into
checks.yaml, its name into `config.findings`, a section of the page, and a run that has it into
tests/training/test_sick_runs.py.

The metrics of a run so far, as the checks read them: means over few steps, early and now.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from rlobj.base.errors import RlobjError
from rlobj.base.yaml import packaged_table
from rlobj.config.layers import layers_of
from rlobj.config.run_config import RunConfig, build_config
from rlobj.objectives.rules import Expr
from rlobj.objectives.rules.nodes import Column
from rlobj.rewards.kinds import NOT_COMPARED

WINDOW = 5
"""Steps in a mean. One step of 32 prompts has an accuracy with a standard error up to 0.09; the
mean of five steps has 0.04."""


MOST = 1e300
"""Larger numbers, which no metric has, count as absent."""


_TEXTS = packaged_table("rlobj.insight.diagnosis", "texts.yaml")


class Found(NamedTuple):
    """What a check has found at the end of a history."""

    evidence: str
    cure: str
    numbers: Mapping[str, float]

    @classmethod
    def of(cls, text: str, numbers: Mapping[str, float], **more: Any) -> Found:
        """What texts.yaml says under a name, with numbers and whatever else it shows."""
        evidence, cure = (_TEXTS[text][part] for part in ("evidence", "cure"))
        shown = {**numbers, **more}
        return cls(evidence.format(**shown), cure.format(**shown), numbers)


class History:
    """The metrics that checks read, one number a step; NaN where a line has none.

    Args:
        config: the run's.
        metrics: names of the metrics that are kept.
        foreign: another trainer made the run.

    Attributes:
        steps: the steps, from 1.
        best: the highest mean of the accuracy over `WINDOW` steps so far, and its last step.
        best_reward: the same of the reward.
    """

    def __init__(self, config: RunConfig, metrics: Iterable[str], foreign: bool = False) -> None:
        self.config, self._foreign = config, foreign
        self.steps: list[int] = []
        self.best = self.best_reward = (math.nan, 0)
        self._series = {name: array("d") for each in metrics for name in self._names(each)}
        self._totals = dict.fromkeys(self._series, 0.0)
        self._first: dict[str, float] = {}

    def _names(self, metric: str) -> list[str]:
        """The metrics that a name stands for: NAME is each score of the run."""
        named = "NAME" in metric
        return [metric.replace("NAME", x) for x in self.config.scores] if named else [metric]

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the metrics of a step."""
        self.steps.append(int(line["step"]))
        for name, values in self._series.items():
            value = line.get(name)
            if not isinstance(value, float | int) or not abs(value) < MOST:
                value = math.nan
            elif name not in self._first:
                self._first[name] = value
            values.append(value)
            self._totals[name] += 0.0 if value != value else value
        self.best = self._better(self.best, "reward/accuracy")
        self.best_reward = self._better(self.best_reward, "reward/mean")

    def _better(self, best: tuple[float, int], name: str) -> tuple[float, int]:
        now = self.mean(name)
        return best if math.isnan(now) or now <= best[0] else (now, self.steps[-1])

    def last(self, name: str, count: int = WINDOW) -> list[float]:
        """The known values of the last steps."""
        return [value for value in self._series[name][-count:] if value == value]

    def together(self, *names: str) -> list[tuple[float, ...]]:
        """The values of some metrics at each of the last steps; NaN where one is unknown."""
        return list(zip(*(self._series[name][-WINDOW:] for name in names), strict=True))

    def mean(self, name: str) -> float:
        """The mean of the known values of the last steps; NaN if there are none."""
        return _mean(self.last(name))

    def early(self, name: str) -> float:
        """The mean of the known values of the first steps; NaN if there are none."""
        return _mean([value for value in self._series[name][:WINDOW] if value == value])

    def total(self, name: str) -> float:
        """The sum of all known values; added up as lines come."""
        return self._totals[name]

    def first(self, name: str) -> float:
        """The first known value; NaN if there is none."""
        return self._first.get(name, math.nan)

    def knows(self, name: str) -> bool:
        """Whether some step has the metric."""
        return any(self.first(each) == self.first(each) for each in self._names(name))

    @property
    def noise(self) -> float:
        """The standard error of the reward's mean over `WINDOW` steps, early in the run.

        The responses of a group count as one, because they share their prompt.
        """
        groups = self.mean("reward/groups")
        return self.early("reward/std") / math.sqrt(max(groups, 1.0) * WINDOW)

    @property
    def gained(self) -> bool:
        """Whether the reward is above that of the first steps by more than twice the noise of a
        difference."""
        gain = self.mean("reward/mean") - self.early("reward/mean")
        return gain > 2 * math.sqrt(2) * self.noise

    @cached_property
    def inert(self) -> tuple[str, ...]:
        """Settings of the objective without effect, which have one in the preset itself.

        In another trainer, those of its objective that no number of updates changes, and penalties;
        none if the number of updates is unknown, as in a converted log.
        """
        config = self.config
        found = _inert(config)
        if self._foreign:
            known = "updates_per_step" in config.training.model_fields_set
            found = tuple(text for text in found if known and "training." not in text)
        try:
            recipe = build_config(layers_of(config.preset, [], profile=False), trust=True)
        except (RlobjError, OSError):  # the preset's file is elsewhere now
            return found
        known = _inert(recipe) if config.preset else ()
        return tuple(text for text in found if text not in known)


def _inert(config: RunConfig) -> tuple[str, ...]:
    return config.resolved_objective().explain(config.training.updates).inert


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


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
ENDLESS, SMALL_GAP, ONE_SIDED, FEW_TOKENS = -5.0, 0.01, 0.98, 0.5
"""A teacher: nats at the ends of responses below which it does not know the end token; nats of a
mean gap that is no rounding; share of gaps with one sign; share of all gaps in 1% of the tokens."""
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
    if h.config.objective.scores_alone:  # such a group has a gradient
        return None
    share, accuracy = h.mean("groups/without_signal_share"), h.mean("reward/accuracy")
    if len(h.steps) < WINDOW or not (share == 1 or (share >= NO_SIGNAL and accuracy < SOLVED)):
        return None
    text = "groups-without-signal"
    if accuracy <= 0 or accuracy >= 1:
        text = "groups-all-wrong" if accuracy <= 0 else "groups-all-right"
    level = dict.fromkeys([_level(h), f"mean reward {h.mean('reward/mean'):.3g}"])
    return Found.of(text, {"share": share, "accuracy": accuracy}, level=", ".join(level))


def entropy_falling(h: History) -> Found | None:
    """Entropy was lost and no reward gained, or exploration has ended too early."""
    now, early, accuracy = _entropy(h)
    spent = now <= SPENT * early and accuracy < SOLVED
    if not (early - now > SMALL_ENTROPY and (spent or (now <= HALVED * early and not h.gained))):
        return None
    what = "almost nothing is explored" if spent else "the reward did not rise"
    numbers = {"early": early, "now": now, "accuracy": accuracy}
    return Found.of("entropy-falling", numbers, what=what, level=_level(h))


def entropy_exploding(h: History) -> Found | None:
    """Entropy rises and the reward does not."""
    now, early, accuracy = _entropy(h)
    if not (now - early > SMALL_ENTROPY and now >= EXPLODED * early and not h.gained):
        return None
    bonus = any(each.kind == "entropy_bonus" for each in h.config.objective.penalties)
    numbers = {"early": early, "now": now, "accuracy": accuracy}
    return Found.of("bonus-exploding" if bonus else "entropy-exploding", numbers, level=_level(h))


def _entropy(h: History) -> tuple[float, float, float]:
    """Entropy now and early, and the accuracy now; NaN before there are enough steps."""
    now = h.mean("policy/entropy") if len(h.steps) >= 2 * WINDOW else math.nan
    return now, h.early("policy/entropy"), h.mean("reward/accuracy")


def _level(h: History) -> str:
    """The accuracy now, or the mean reward where nothing says which responses are right."""
    accuracy = h.mean("reward/accuracy")
    reward = f"mean reward {h.mean('reward/mean'):.3g}"
    return reward if math.isnan(accuracy) else f"accuracy {accuracy:.3f}"


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
UNDECIDED, MORE_UNDECIDED = 0.05, 0.02
"""Share of responses that were not compared, and its rise since the first steps. A policy that
learns the form writes answers that cannot be read at first, so these count later."""
UNREAD, MORE_UNREAD = 0.5, 0.15
"""Share of responses without an answer that can be read, beyond those that are cut, and its rise. A
policy that learns the form has a high share at first, and its reward rises. The rise exceeds two
standard errors of a difference if each step has 32 groups."""
DISPUTED, FEW_GROUPS = 0.1, 5
"""Share of unanimous groups whose common answer is graded wrong, and their smallest number.
Healthy runs have 0.01; with 20% wrong gold answers it is 0.2."""
HALF_SIGNAL, LARGEST_GROUP = 0.5, 128
FAILED, FEW_CALLS = 0.5, 20
"""Share of calls that fail, and the smallest number of calls in five steps. A policy that learns to
call makes mistakes at first, so this counts later."""
FEW_CALLERS = 100
"""Responses of five steps with calls, and without, whose accuracies are compared: the standard
error of the difference is at most 0.07."""


def rule_never_fires(h: History) -> Found | None:
    """`drop` or `keep` has not dropped a token yet."""
    tokens, dropped = h.total("tokens/step"), "tokens/dropped"
    few = len(h.steps) < MANY_STEPS or tokens < MANY_TOKENS
    if few or h.total(dropped) > 0 or not h.knows(dropped):
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
    """`drop` and `keep` drop almost every token; steps without tokens say nothing about it."""
    steps, objective = h.together("objective/kept_fraction", "tokens/step"), h.config.objective
    shares = [kept for kept, tokens in steps if tokens != 0 and not math.isnan(kept)]
    ruled = objective.drop_rule is not None or objective.keep_rule is not None
    if len(h.steps) < 3 or not (ruled and shares):
        return None
    kept = sum(shares) / len(shares)
    return Found.of("rule-fires-on-everything", {"kept": kept}) if kept <= EVERYTHING else None


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
    if h.knows("turns/at_tokens"):  # `turn_limit_reached` says it
        return None
    share, right = h.mean("response/truncated"), h.mean("response/truncated_right")
    if math.isnan(right):  # in another trainer: at most all right responses were cut
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
    """Responses are not compared or have no answer to read, or gold answers look wrong."""
    if not h.config.objective.reads_rewards:
        return None
    return _unread(h) or _not_compared(h) or _disputed(h)


def _not_compared(h: History) -> Found | None:
    now, before = (
        {
            "undecided": mean("reward/undecided") / max(mean("response/count"), 1.0),
            **{
                cause: mean(f"reward/{cause}_share")
                for cause in NOT_COMPARED
                if h.knows(f"reward/{cause}_share")
            },
        }
        for mean in (h.mean, h.early)
    )
    share, early = sum(now.values()), sum(before.values())
    limits, first = (
        each - found.get("unreadable", 0.0) for each, found in ((share, now), (early, before))
    )
    stuck = share >= UNDECIDED and len(h.steps) >= MANY_STEPS and not h.gained
    if not (stuck or limits >= UNDECIDED or limits - first >= MORE_UNDECIDED):
        return None
    causes = sorted(((x, name) for name, x in now.items() if x >= 5e-4), reverse=True)
    text = ", ".join(f"{name.replace('_', ' ')} {x:.1%}" for x, name in causes)
    sampled = h.config.output.samples_every > 0  # not in another trainer
    name = "not-compared" if sampled else "undecided-without-samples"
    return Found.of(name, {"share": share, "early": early, **now}, causes=text)


def _unread(h: History) -> Found | None:
    unread, early = h.mean("reward/no_answer_share"), h.early("reward/no_answer_share")
    cut = (0.0, *h.last("response/truncated"))
    whole = unread - sum(cut) / max(len(cut) - 1, 1)
    high = whole >= UNREAD and len(h.steps) >= MANY_STEPS and not h.gained
    if not (high or min(whole, unread - early) >= MORE_UNREAD):
        return None
    return Found.of("unread-answers", {"share": unread, "early": early})


def _disputed(h: History) -> Found | None:
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


def teacher_trouble(h: History) -> Found | None:
    """A teacher has another end token, pushes all tokens one way, or is about few tokens."""
    for name in h.config.scores:
        gap, end = (h.mean(f"score/{name}/{kind}") for kind in ("gap", "end_gap"))
        side, top = (h.mean(f"score/{name}/{kind}") for kind in ("one_sided", "top_1pct"))
        numbers = {"gap": gap, "end": end, "side": side, "top": top}
        if end < min(ENDLESS, gap + ENDLESS):
            return Found.of("teacher-end", numbers, name=name)
        if len(h.steps) >= WINDOW and gap < -SMALL_GAP and side >= ONE_SIDED:
            return Found.of("teacher-one-sided", numbers, name=name)
        if len(h.steps) >= WINDOW and gap < -SMALL_GAP and top >= FEW_TOKENS:
            return Found.of("teacher-few-tokens", numbers, name=name)
    return None


def tool_never_called(h: History) -> Found | None:
    """No response calls a tool, or none does so any more."""
    calls, turns, accuracy = (h.mean(x) for x in ("tools/calls", "turns/mean", "reward/accuracy"))
    before = h.total("tools/calls")
    who = h.config.environment  # with neither target nor tools, another trainer has tools
    expected = before > 0 or who.tools or who.target in (None, "calculator")
    if len(h.steps) < WINDOW or calls != 0 or not expected or accuracy >= SOLVED:
        return None
    numbers = {"calls": before, "turns": turns}
    return Found.of("calls-ended" if before else "never-called", numbers, level=_level(h))


def called_in_vain(h: History) -> Found | None:
    """Most calls fail, or responses with calls are not right more often than those without."""
    calls, errors = (sum(h.last(f"tools/{x}")) for x in ("calls", "errors"))
    timeouts, late = sum(h.last("tools/timeouts")), len(h.steps) >= 2 * WINDOW
    if late and calls >= FEW_CALLS and errors >= FAILED * calls:
        return Found.of("calls-fail", {"calls": calls, "errors": errors, "timeouts": timeouts})
    called, without = h.mean("tools/accuracy_with"), h.mean("tools/accuracy_without")
    share = h.mean("tools/used_share")
    fewer = min(share, 1 - share) * sum(h.last("response/count"))
    if not (late and called <= without and fewer >= FEW_CALLERS):
        return None
    numbers = {"with": called, "without": without, "share": share}
    return Found.of("calls-do-not-help", {}, **numbers)._replace(numbers=numbers)


def turn_limit_reached(h: History) -> Found | None:
    """Many conversations end at a limit of turns, tokens or failed calls, and are not right."""
    shares = {x: h.mean(f"turns/at_{x}") for x in ("turns", "tokens", "errors")}
    name, right = max(shares, key=lambda x: shares[x]), h.mean("response/truncated_right")
    if len(h.steps) < 3 or not shares[name] >= TRUNCATED or right >= CUT_RIGHT:
        return None
    limits = {"turns": h.config.environment.max_turns, "tokens": h.config.sampling.max_tokens}
    most = limits.get(name, h.config.environment.max_errors) or 0
    numbers = {"share": shares[name], "mean": h.mean("turns/mean")}
    return Found.of(f"limit-{name}", numbers, most=most, twice=2 * most)


def _all_equal(p: float, size: int) -> float:
    """The probability that independent responses are all right or all wrong."""
    return p**size + (1 - p) ** size


class Check(NamedTuple):
    """A check and the metrics without which it says nothing.

    Attributes:
        look: the check.
        needs: metrics; one of them is enough.
        also: metrics that it reads beside them.
    """

    look: Callable[[History], Found | None]
    needs: Sequence[str]
    also: Sequence[str] = ()


CHECKS = {
    name: Check(globals()[name.replace("-", "_")], **metrics)
    for name, metrics in packaged_table("rlobj.insight.diagnosis", "checks.yaml").items()
}
"""The checks by name, in the order of `FindingName`; each is the function of this name."""

METRICS = tuple(
    dict.fromkeys(name for check in CHECKS.values() for name in (*check.needs, *check.also))
)
"""All metrics that checks read."""
