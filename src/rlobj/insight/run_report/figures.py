"""The figures of a report: what each draws, and the curves of runs in it.

An element of `PLOTS` makes a figure of the page and a file of `--figures`. To add one: add an
element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlobj.insight.diagnosis.checks import CHECKS
from rlobj.insight.numbers import Z95
from rlobj.insight.run_report.runs import MetricLine, Run, parts_of
from rlobj.reporting import Figure, Line, Mark, Target, visible
from rlobj.runs.metrics import is_number, measure_of

_MOST_LINES = 12
"""Curves of a run that a `*` may stand for."""


class Interval(NamedTuple):
    """A 95% interval around a curve.

    Attributes:
        width: the half of it, from a line of metrics.jsonl.
        note: what a reader must know.
    """

    width: Callable[[MetricLine], float]
    note: str


def _held_out(line: MetricLine) -> float:
    return Z95 * measure_of([line]).error(line)


def _sampled(line: MetricLine) -> float:
    """The responses of a group share their prompt, so a group counts as one response."""
    p, groups = line["reward/accuracy"], line.get("reward/groups") or 1.0
    return Z95 * math.sqrt(max(p * (1 - p), 0.0) / max(groups, 1.0))


HELD_OUT = Interval(_held_out, "Band: 95% interval.")
SAMPLED = Interval(_sampled, "Band: 95% interval, in which a group counts as one response.")


@dataclass(frozen=True)
class Plot:
    """A figure before it has runs.

    Attributes:
        name: of its file and of its anchor.
        title: what is drawn.
        unit: of the y axis.
        metrics: expression (see `Run.values`) -> its name in the legend. `*` stands for
            what each metric of the run has at its place, which is also its name.
        interval: around the first metric.
        band: the metrics below and above the first metric.
        note: what a reader must know.
    """

    name: str
    title: str
    unit: str
    metrics: Mapping[str, str | None]
    interval: Interval | None = None
    band: tuple[str, str] | None = None
    note: str = ""


PLOTS: dict[str, tuple[Plot, ...]] = {
    "Learning": (
        Plot("reward", "Reward", "reward", {"reward/mean": "mean"}),
        Plot(
            "held-out-accuracy",
            "Held-out accuracy",
            "share of problems",
            {"eval/accuracy": "accuracy"},
            interval=HELD_OUT,
        ),
        Plot(
            "held-out-reward",
            "Held-out reward",
            "reward",
            {"eval/reward": "mean"},
            interval=HELD_OUT,
        ),
        Plot(
            "training-accuracy",
            "Accuracy of the samples",
            "share of responses",
            {"reward/accuracy": "accuracy"},
            interval=SAMPLED,
        ),
        Plot("rewards", "Several rewards", "reward", {"reward/*/mean": None}),
    ),
    "Entropy": (
        Plot("entropy", "Entropy, mean", "nats", {"policy/entropy": "mean"}),
        Plot(
            "entropy-quantiles",
            "Entropy, quantiles over tokens",
            "nats",
            {"entropy/q50": "median", "entropy/q05": "5%", "entropy/q95": "95%"},
            band=("entropy/q25", "entropy/q75"),
            note="Band: 25% to 75% of the tokens.",
        ),
        Plot(
            "entropy-change",
            "Change of the entropy in a step",
            "nats",
            {"entropy/measured_change": "measured"},
        ),
        Plot(
            "predicted-change",
            "Predicted change of the entropy",
            "",
            {"entropy/predicted_change": "predicted"},
            note=(
                "To first order, for a step of size 1. Only its sign and its shape have a meaning."
            ),
        ),
        Plot(
            "rare-tokens",
            "Tokens with a probability up to 0.01",
            "share of tokens",
            {"prob/decade_2 + prob/decade_3 + prob/decade_4 + prob/decade_5": "tokens"},
        ),
    ),
    "Rule": (
        Plot(
            "kept",
            "Tokens kept by drop and keep",
            "share of tokens",
            {"objective/kept_fraction": "kept"},
        ),
        Plot(
            "touched",
            "Dropped and reweighted tokens",
            "share of tokens",
            {"effect/*": None},
            note="From the record; estimates where it is sampled.",
        ),
        Plot(
            "selected",
            "Tokens selected by each cut",
            "share",
            {"selected/*": None},
            note=(
                "A cut is a part of a rule that ranks tokens, groups or responses, such as "
                "entropy.bottom(0.8): the share of those it ranks that it selects."
            ),
        ),
        Plot(
            "controllers",
            "Controllers",
            "value",
            {"controller/*": None},
            note="Numbers of the objective that change during the run.",
        ),
        Plot(
            "spurious-share", "Spurious tokens", "share of tokens", {"spurious/share": "spurious"}
        ),
        Plot(
            "precision",
            "Precision of the rule",
            "share of dropped tokens",
            {"spurious/caught / spurious/dropped": "spurious"},
        ),
        Plot(
            "recall",
            "Recall of the rule",
            "share of spurious tokens",
            {"spurious/caught / spurious/tokens": "dropped"},
        ),
    ),
    "Policy and sampler": (
        Plot(
            "clip",
            "Clipped tokens",
            "share of kept tokens",
            {"clip/high_fraction": "above", "clip/low_fraction": "below"},
        ),
        Plot(
            "ratio",
            "Largest ratio π/π_old",
            "ratio",
            {"policy/ratio_max": "largest"},
            note="π_old is the policy at the start of the step.",
        ),
        Plot(
            "kl",
            "KL from π_old",
            "nats",
            {"policy/kl_old": "mean"},
            note=(
                "π_old is the policy at the start of the step. Estimated from the sampled "
                "tokens (k3)."
            ),
        ),
        Plot(
            "sampler-gap",
            "Mismatch with the sampler",
            "nats",
            {"sampler/logprob_gap": "mean"},
            note="Mean distance between its log-probabilities and the policy's.",
        ),
        Plot(
            "sampler-ratio", "Largest ratio π/π_sampler", "ratio", {"sampler/ratio_max": "largest"}
        ),
    ),
    "Gradient": (
        Plot("gradient-norm", "Gradient norm", "norm", {"train/grad_norm": "norm"}),
        Plot(
            "concentration",
            "Gradient carried by few tokens",
            "share of the gradient",
            {
                "gradient/top_1pct": "1% of tokens",
                "gradient/top_0.1pct": "0.1%",
                "gradient/top_0.01pct": "0.01%",
            },
            note=(
                "Each token has a gradient through its logits. The share is of the sum of the"
                " norms over all tokens, for the tokens with the largest norms."
            ),
        ),
        Plot(
            "quadrants",
            "Gradient by its effect on the entropy",
            "share of the gradient",
            {
                "gradient/positive_likely": "A > 0, likely: entropy falls",
                "gradient/positive_surprising": "A > 0, surprising: entropy rises",
                "gradient/negative_likely": "A < 0, likely: entropy rises",
                "gradient/negative_surprising": "A < 0, surprising: entropy falls",
            },
            note=(
                "A is the advantage. A token is likely if a larger probability of it lowers "
                "the entropy, otherwise it is surprising."
            ),
        ),
        Plot("loss", "Loss", "loss", {"loss/*": None}),
        Plot("learning-rate", "Learning rate", "", {"train/learning_rate": "rate"}),
    ),
    "Responses": (
        Plot("length", "Response length", "tokens", {"response/length_mean": "mean"}),
        Plot(
            "truncated",
            "Truncated responses",
            "share of responses",
            {"response/truncated": "truncated"},
        ),
        Plot(
            "same",
            "Most common text and gold answer",
            "share of responses",
            {"response/most_common": "text", "response/most_common_gold": "gold answer"},
            note="Gold answer: responses to problems with the most common gold answer.",
        ),
    ),
    "Conversations": (
        Plot("turns", "Turns of a response", "turns", {"turns/mean": "mean"}),
        Plot(
            "turn-limits",
            "Conversations that ended at a limit",
            "share of responses",
            {
                "turns/at_turns": "turns",
                "turns/at_tokens": "tokens",
                "turns/at_errors": "failed calls",
                "turns/at_broken": "environment failed",
            },
        ),
        Plot(
            "calls",
            "Calls of tools",
            "calls per response",
            {
                "tools/calls / response/count": "calls",
                "tools/errors / response/count": "failed",
                "tools/timeouts / response/count": "too slow",
            },
        ),
        Plot(
            "accuracy-by-use",
            "Accuracy with and without a call",
            "share of responses",
            {
                "tools/accuracy_with": "with",
                "tools/accuracy_without": "without",
                "tools/used_share": "share with a call",
            },
        ),
    ),
    "Verifier": (
        Plot(
            "undecided",
            "Responses that were not compared",
            "share of responses",
            {
                "reward/undecided / response/count": "undecided",
                "reward/no_answer_share": "no answer",
                "reward/unreadable_share": "unreadable",
                "reward/too_large_share": "too large",
                "reward/not_settled_share": "not settled",
                "reward/timeout_share": "timeout",
                "reward/crash_share": "crash",
            },
        ),
        Plot(
            "agreed",
            "Groups whose responses agree",
            "groups",
            {"groups/agreed_right": "graded right", "groups/agreed_wrong": "graded wrong"},
        ),
        Plot(
            "without-signal",
            "Groups without signal",
            "share of groups",
            {"groups/without_signal_share": "equal rewards"},
        ),
    ),
    "Time": (
        Plot("speed", "Throughput", "tokens/s", {"tokens/per_second": "sampled"}),
        Plot("step-time", "Time of a step", "seconds", {"time/step": "step"}),
        Plot(
            "phases",
            "Sampling and updating",
            "seconds",
            {
                "time/sampling": "sampling",
                (
                    "time/scoring + time/planning + time/forward + time/backward + time/optimizer"
                ): "scoring and updating",
            },
        ),
    ),
}
"""The figures by section of the page."""


def figures(runs: Sequence[Run]) -> list[tuple[str, Plot, Figure]]:
    """The figures that have a curve, with their sections."""
    drawn = [(name, plot, _figure(plot, runs)) for name, plots in PLOTS.items() for plot in plots]
    return [entry for entry in drawn if entry[2].lines]


def finding_id(run: int, name: str) -> str:
    """The anchor of a finding in the page."""
    return f"finding-{run}-{name}"


def _figure(plot: Plot, runs: Sequence[Run]) -> Figure:
    lines, compared = [], len(runs) > 1
    several = len(plot.metrics) > 1 or "*" in "".join(plot.metrics)
    for number, run in enumerate(runs):
        for metric, label in _expanded(plot.metrics, run).items():
            curve = _curve(plot, run, metric)
            parts = (label if several or not compared else "", run.label if compared else "")
            if any(value is not None for value in curve["y"]):
                color = number if compared else None
                lines.append(Line(": ".join(filter(None, parts)), **curve, run=color))
    targets = [target for run in runs for target in _targets(plot, run)]
    rules = [(run.label if compared else "", run.rule) for run in runs]
    return Figure(
        name=plot.name,
        title=plot.title,
        unit=plot.unit,
        lines=lines,
        marks=[mark for number, run in enumerate(runs) for mark in _marks(plot, run, number)],
        targets=list(dict.fromkeys(targets)),
        caption=[": ".join(filter(None, label_and_rule)) for label_and_rule in rules],
    )


def _expanded(metrics: Mapping[str, str | None], run: Run) -> dict[str, str]:
    """Metrics with their names in the legend; `*` becomes what the run has at its place."""
    labels = {}
    for metric, label in metrics.items():
        if "*" not in metric:
            labels[metric] = label or ""
            continue
        start, end = metric.split("*")
        names = [name for name in run.metrics if name.startswith(start) and name.endswith(end)]
        inner = {name: name[len(start) : len(name) - len(end)] for name in names[:_MOST_LINES]}
        labels |= {name: visible(text, 60) for name, text in inner.items() if text}
    return labels


def _curve(plot: Plot, run: Run, metric: str) -> dict[str, Any]:
    """Places, values and band of a metric, where a line has it."""
    points = run.values(metric)
    y = [value for _, value in points]
    curve: dict[str, Any] = {"x": tuple(line["step"] for line, _ in points), "y": y}
    if metric != next(iter(plot.metrics)):
        return curve
    if plot.interval is not None:
        widths = [0.0 if y is None else plot.interval.width(line) for line, y in points]
        lowest, highest = (0.0, 1.0) if metric.endswith("accuracy") else (-math.inf, math.inf)
        ends = list(zip(y, widths, strict=True))
        curve["low"] = [None if y is None else max(y - width, lowest) for y, width in ends]
        curve["high"] = [None if y is None else min(y + width, highest) for y, width in ends]
    if plot.band is not None:
        ends = zip(("low", "high"), plot.band, strict=True)
        curve |= {end: [line.get(name) for line, _ in points] for end, name in ends}
    return curve


def _targets(plot: Plot, run: Run) -> list[Target]:
    """The entropies at which a gate of the objective opens."""
    if plot.name != "entropy":
        return []
    objective = run.settings.get("objective")
    controllers = objective.get("controllers") if isinstance(objective, Mapping) else None
    return [
        Target(gate["target"], gate["target"], f"target of {name}")
        for name, gate in (controllers.items() if isinstance(controllers, Mapping) else ())
        if isinstance(gate, Mapping) and gate.get("of") is None and is_number(gate.get("target"))
    ]


def _marks(plot: Plot, run: Run, number: int) -> list[Mark]:
    """The findings whose checks read a metric of the figure, and that began at some step."""
    drawn = {name for metric in plot.metrics for name in parts_of(metric)}
    marks = []
    for finding in run.findings:
        check = CHECKS.get(finding.name)
        if check and finding.name != "inert-setting" and drawn & {*check.needs, *check.also}:
            text = f"{finding.name}, {finding.when}"
            marks.append(Mark(finding.since, text, number, finding_id(number, finding.name)))
    return marks
