"""The checks of a diagnosis, as a table. `docs/diagnosis.md` explains them and their thresholds.

To add one: write a condition into conditions.py and a row below. A new name goes into
`settings.training.FindingName` and onto the page, a run that has it into test_diagnosis.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from rlobj.insight.diagnosis import conditions as on
from rlobj.insight.diagnosis.history import History
from rlobj.settings.training import FindingName

NAMES: tuple[FindingName, ...] = get_args(FindingName)


@dataclass(frozen=True)
class Check:
    """A row: a condition, and what is said where it holds. Of one name the first such row speaks.

    Attributes:
        name: of the finding.
        reads: metrics without which it cannot be checked; * stands for the name of a score.
        condition: see conditions.py.
        sentence: a format of what the condition returns and of `history`.
        advice: what would have touched it: settings and rules; a format, too.
        slower: a lower learning rate would have touched it.
    """

    name: FindingName
    reads: tuple[str, ...]
    condition: Callable[[History], on.Facts]
    sentence: str
    advice: str
    slower: bool = False


_LOWER = "Divide training.learning_rate={history.config.training.learning_rate:.3g} by 10."
CHECKS = (
    Check(
        "collapse",
        ("reward/mean", "reward/std"),
        on.lost,
        "the {what} fell from {best:.3f} (step {best_step}) to {now:.3f}",
        "Start a new run with a lower training.learning_rate, a bounded surrogate (clip), or a kl "
        "penalty; read in samples/ what the reward pays.",
        slower=True,
    ),
    Check(
        "no-signal",
        ("groups/without_signal_share",),
        on.silent_groups,
        "{share:.0%} of the groups have equal rewards, so that their advantages are 0 "
        "({history.level})",
        "Use problems of medium difficulty or a larger sampling.group_size; sampling.dynamic={{}} "
        "replaces such groups.",
    ),
    Check(
        "no-signal",
        ("objective/kept_fraction", "tokens/step"),
        on.nothing_kept,
        "drop and keep leave {kept:.2%} of the tokens: almost nothing is trained",
        "Check the rule's comparison and threshold: rlobj presets show says what it selects.",
    ),
    Check(
        "constant-reward",
        ("groups/without_signal_share",),
        on.constant_reward,
        "no group has rewards that differ: they never pay, or always ({history.level})",
        "If nothing is right, check the reward in samples/, the template, and sampling.max_tokens. "
        "If everything is, check what the reward tests, or train on harder problems.",
    ),
    Check(
        "entropy",
        ("policy/entropy",),
        on.entropy_fallen,
        "the policy's entropy fell from {early:.3g} to {now:.3g} nats a token and {what} "
        "({history.level})",
        "Tokens with a positive advantage that are likely already lower the entropy. "
        "objective.surrogate.high=0.28, and the presets 20-entropy, clip-cov, kl-cov and stare act "
        "on them; a lower training.learning_rate delays it.",
        slower=True,
    ),
    Check(
        "entropy",
        ("policy/entropy",),
        on.entropy_risen,
        "the policy's entropy rose from {early:.3g} to {now:.3g} nats a token and the reward did "
        "not ({history.level})",
        "Lower an entropy bonus, or give it a target. Tokens with a negative advantage that are "
        "likely, and positive ones that are surprising, raise the entropy: stapo drops the latter, "
        "lp-reg protects the former; a lower training.learning_rate slows both.",
        slower=True,
    ),
    Check(
        "update-too-large",
        ("train/skipped_updates",),
        on.not_finite,
        "loss or gradient were not finite in {steps} of the last 5 steps",
        _LOWER,
        slower=True,
    ),
    Check(
        "update-too-large",
        ("policy/kl_old",),
        on.moved_far,
        "the updates of a step move the policy by {kl:.3g} nats a token on average",
        _LOWER,
        slower=True,
    ),
    Check(
        "update-too-large",
        ("reward/mean", "reward/std"),
        on.lost_fast,
        "the {what} fell from {best:.3f} to {now:.3f} within {steps} steps",
        _LOWER,
        slower=True,
    ),
    Check(
        "update-too-large",
        ("policy/ratio_max",),
        on.large_ratios,
        "the largest ratio of a token exceeded 10 in {steps} of the last {of} steps; largest "
        "{ratio_max:.3g}",
        "Bound the surrogate (clip with high=0.28 and dual=10, or cispo), make fewer "
        "training.updates_per_step, or lower training.learning_rate.",
        slower=True,
    ),
    Check(
        "truncation",
        ("response/truncated", "reward/accuracy"),
        on.truncated,
        "{share:.0%} of the responses are cut at a limit; {right:.0%} of these are right",
        "Raise sampling.max_tokens={history.config.sampling.max_tokens}, or shape the reward "
        "(rewards.overlong, as dapo does). Conversations also end at environment.max_turns and "
        "environment.max_errors.",
    ),
    Check(
        "sampler-drift",
        ("sampler/logprob_gap",),
        on.sampler_drift,
        "sampler and policy differ by {gap:.3g} nats a token (first step {first:.3g})",
        "The sampler does not use the policy's weights or its temperature: check its sync. With "
        "sampling.async_depth, lower it, or use objective.mismatch={{kind: truncate}}",
    ),
    Check(
        "verifier-trouble",
        ("reward/undecided", "response/count"),
        on.not_compared,
        "responses were not compared with their gold answers: {parts}",
        "Read such responses in samples/, whose column reason says why; in another trainer, look "
        "for None and NaN that your reward function returns. If the form of the answer is new to "
        "the policy, ask for it in data.template; see rewards.deadline for timeout.",
    ),
    Check(
        "teacher-trouble",
        ("score/*/end_gap",),
        on.other_end,
        "the score {score} gives the tokens that end responses {end:.3g} nats less than the "
        "policy, and all tokens {gap:.3g}: it ends responses with another token, so responses get "
        "longer",
        "Use scores.{score}.end=ID, the id of its own end token; or a teacher with the policy's.",
    ),
    Check("inert-setting", ("reward/mean",), on.inert, "{inert}", "Change or remove it."),
    Check(
        "inert-setting",
        ("tokens/dropped", "tokens/step"),
        on.rule_never_fires,
        "none of {tokens:,.0f} tokens was dropped by {rules}: the run equals one without it",
        "Count what each part of it selects: rlobj replay RUN --rule PART. The part that selects "
        "nothing has the threshold to change.",
    ),
)
"""All rows, grouped by name."""
