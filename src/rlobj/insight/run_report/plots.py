"""The table of figures, and the curves of runs that they draw.

One row of `PLOTS` makes a figure of the page and a file of `--figures`. To add one: add a row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from statistics import pstdev
from typing import Any

from rlobj.insight.diagnosis.checks import CHECKS
from rlobj.insight.outcomes import Z95, standard_error
from rlobj.insight.run_report.runs import Run, is_number
from rlobj.reporting import Figure, Line, Mark, Target, visible

MetricLine = Mapping[str, Any]
_MOST_LINES = 12
"""Curves of a run that a `*` may stand for."""


def _held_out(line: MetricLine) -> float:
    return Z95 * standard_error(line)


def _sampled(line: MetricLine) -> float:
    """The responses of a group share their prompt, so a group counts as one response."""
    p, groups = line["reward/accuracy"], line.get("reward/groups") or 1.0
    return Z95 * math.sqrt(max(p * (1 - p), 0.0) / max(groups, 1.0))


@dataclass(frozen=True)
class Plot:
    """A figure before it has runs.

    Attributes:
        section: of the page.
        name: of its file and of its anchor.
        title: what is drawn.
        unit: of the y axis.
        metrics: expression (see `Run.values`) -> its name in the legend. `*` stands for
            what each metric of the run has at its place.
        width: half of the 95% interval of the first metric in a line.
        band: the metrics below and above the first metric.
        note: what a reader must know.
    """

    section: str
    name: str
    title: str
    unit: str
    metrics: Mapping[str, str]
    width: Callable[[MetricLine], float] | None = None
    band: tuple[str, str] | None = None
    note: str = ""


_QUADRANTS = {
    "gradient/positive_likely": "A > 0, likely: entropy falls",
    "gradient/positive_surprising": "A > 0, surprising: entropy rises",
    "gradient/negative_likely": "A < 0, likely: entropy rises",
    "gradient/negative_surprising": "A < 0, surprising: entropy falls",
}
_UPDATE = "time/scoring + time/planning + time/forward + time/backward + time/optimizer"
_RARE = "prob/decade_2 + prob/decade_3 + prob/decade_4 + prob/decade_5"
_OF_TOKENS = "share of tokens"
_OF_RESPONSES = "share of responses"
_PREDICTED = "entropy/predicted_change"

PLOTS = (
    Plot("Learning", "reward", "Reward", "reward", {"reward/mean": "mean"}),
    Plot(
        *("Learning", "held-out-accuracy", "Held-out accuracy", "share of problems"),
        {"eval/accuracy": "accuracy"},
        width=_held_out,
        note="Band: 95% interval.",
    ),
    Plot(
        *("Learning", "training-accuracy", "Accuracy of the samples", _OF_RESPONSES),
        {"reward/accuracy": "accuracy"},
        width=_sampled,
        note="Band: 95% interval, in which a group counts as one response.",
    ),
    Plot("Learning", "rewards", "Several rewards", "reward", {"reward/*/mean": ""}),
    Plot("Entropy", "entropy", "Entropy, mean", "nats", {"policy/entropy": "mean"}),
    Plot(
        *("Entropy", "entropy-quantiles", "Entropy, quantiles over tokens", "nats"),
        {"entropy/q50": "median", "entropy/q05": "5%", "entropy/q95": "95%"},
        band=("entropy/q25", "entropy/q75"),
        note="Band: 25% to 75% of the tokens.",
    ),
    Plot(
        *("Entropy", "entropy-change", "Change of the entropy in a step", "nats"),
        {"entropy/measured_change": "measured", _PREDICTED: "predicted, scaled"},
        note="The prediction is per unit step. It is scaled to the standard deviation of what was "
        "measured, so compare sign and course.",
    ),
    Plot(
        *("Entropy", "rare-tokens", "Tokens with a probability up to 0.01", _OF_TOKENS),
        {_RARE: "tokens"},
    ),
    Plot("Rule", "kept", "Kept by drop and keep", _OF_TOKENS, {"objective/kept_fraction": "kept"}),
    Plot(
        *("Rule", "touched", "Silenced and reweighted tokens", _OF_TOKENS),
        {"effect/*": ""},
        note="From the record; estimates where it is sampled.",
    ),
    Plot("Rule", "selected", "Selected by the cuts of rules", "share", {"selected/*": ""}),
    Plot("Rule", "controllers", "Controllers", "value", {"controller/*": ""}),
    Plot(
        *("Rule", "spurious-share", "Spurious tokens", _OF_TOKENS),
        {"spurious/share": "spurious"},
    ),
    Plot(
        *("Rule", "precision", "Precision of the rule", "share of silenced tokens"),
        {"spurious/caught / spurious/dropped": "spurious"},
    ),
    Plot(
        *("Rule", "recall", "Recall of the rule", "share of spurious tokens"),
        {"spurious/caught / spurious/tokens": "silenced"},
    ),
    Plot(
        *("Policy and sampler", "clip", "Clipped tokens", "share of kept tokens"),
        {"clip/high_fraction": "above", "clip/low_fraction": "below"},
    ),
    Plot(
        *("Policy and sampler", "ratio", "Largest ratio π/π_old", "ratio"),
        {"policy/ratio_max": "largest"},
    ),
    Plot(
        *("Policy and sampler", "kl", "KL from π_old", "nats"),
        {"policy/kl_old": "k3"},
    ),
    Plot(
        *("Policy and sampler", "sampler-gap", "Mismatch with the sampler", "nats"),
        {"sampler/logprob_gap": "mean"},
        note="Mean distance between its log-probabilities and the policy's.",
    ),
    Plot(
        *("Policy and sampler", "sampler-ratio", "Largest ratio π/π_sampler", "ratio"),
        {"sampler/ratio_max": "largest"},
    ),
    Plot("Gradient", "gradient-norm", "Gradient norm", "norm", {"train/grad_norm": "norm"}),
    Plot(
        *("Gradient", "concentration", "Gradient carried by few tokens", "share of Σ g"),
        {
            "gradient/top_1pct": "1% of tokens",
            "gradient/top_0.1pct": "0.1%",
            "gradient/top_0.01pct": "0.01%",
        },
    ),
    Plot("Gradient", "quadrants", "Gradient by quadrant", "share of Σ g", _QUADRANTS),
    Plot("Gradient", "loss", "Loss", "loss", {"loss/*": ""}),
    Plot("Gradient", "learning-rate", "Learning rate", "", {"train/learning_rate": "rate"}),
    Plot("Responses", "length", "Response length", "tokens", {"response/length_mean": "mean"}),
    Plot(
        *("Responses", "truncated", "Truncated responses", _OF_RESPONSES),
        {"response/truncated": "truncated"},
    ),
    Plot(
        *("Responses", "same", "Responses with the most common text", _OF_RESPONSES),
        {"response/most_common": "same text", "response/most_common_gold": "same gold answer"},
    ),
    Plot(
        *("Verifier", "undecided", "Responses without a verdict", _OF_RESPONSES),
        {"reward/undecided / response/count": "undecided"},
    ),
    Plot(
        *("Verifier", "agreed", "Groups whose responses agree", "groups"),
        {"groups/agreed_right": "right", "groups/agreed_wrong": "graded wrong"},
    ),
    Plot(
        *("Verifier", "without-signal", "Groups without signal", "share of groups"),
        {"groups/without_signal_share": "equal rewards"},
    ),
    Plot("Time", "speed", "Throughput", "tokens/s", {"tokens/per_second": "sampled"}),
    Plot("Time", "step-time", "Time of a step", "seconds", {"time/step": "step"}),
    Plot(
        *("Time", "phases", "Sampling and updating", "seconds"),
        {"time/sampling": "sampling", _UPDATE: "scoring and updating"},
    ),
)


def figures(runs: Sequence[Run], *, named: bool) -> list[tuple[Plot, Figure]]:
    """The figures that have a curve.

    Args:
        runs: the runs.
        named: name the rule in the legend even if there is one run.
    """
    drawn = [(plot, _figure(plot, runs, named or len(runs) > 1)) for plot in PLOTS]
    return [(plot, figure) for plot, figure in drawn if figure.lines]


def finding_id(run: int, name: str) -> str:
    """The anchor of a finding in the page."""
    return f"finding-{run}-{name}"


def _figure(plot: Plot, runs: Sequence[Run], named: bool) -> Figure:
    lines = []
    for number, run in enumerate(runs):
        metrics = _expanded(plot.metrics, run)
        found = {label: _curve(plot, run, metric) for metric, label in metrics.items()}
        if plot.name == "entropy-change":
            found = _scaled(found)
        for label, curve in found.items():
            several = len(plot.metrics) > 1 or "*" in "".join(plot.metrics)
            parts = (label if several or not named else "", run.title if named else "")
            if curve["x"]:
                color = number if len(runs) > 1 else None
                lines.append(Line(": ".join(filter(None, parts)), **curve, run=color))
    targets = [each for run in runs for each in _targets(run)] if plot.name == "entropy" else []
    return Figure(
        name=plot.name,
        title=plot.title,
        unit=plot.unit,
        lines=lines,
        marks=[mark for number, run in enumerate(runs) for mark in _marks(plot, run, number)],
        targets=list(dict.fromkeys(targets)),
    )


def _expanded(metrics: Mapping[str, str], run: Run) -> dict[str, str]:
    """Metrics with their names in the legend; `*` becomes what the run has at its place."""
    found = {}
    for metric, label in metrics.items():
        if "*" not in metric:
            found[metric] = label
            continue
        start, end = metric.split("*")
        names = [each for each in run.metrics if each.startswith(start) and each.endswith(end)]
        inner = {each: each[len(start) : len(each) - len(end)] for each in names[:_MOST_LINES]}
        found |= {each: visible(text, 60) for each, text in inner.items() if text}
    return found


def _curve(plot: Plot, run: Run, metric: str) -> dict[str, Any]:
    """Places, values and band of a metric, where a line has it."""
    values = run.values(metric)
    known = [value is not None for value in values]
    y = [value for value in values if value is not None]
    lines = list(compress(run.lines, known))
    curve: dict[str, Any] = {"x": tuple(compress(run.places, known)), "y": y}
    if metric != next(iter(plot.metrics)):
        return curve
    if plot.width is not None:
        widths = list(map(plot.width, lines))
        curve["low"] = [max(mean - width, 0.0) for mean, width in zip(y, widths, strict=True)]
        curve["high"] = [min(mean + width, 1.0) for mean, width in zip(y, widths, strict=True)]
    if plot.band is not None:
        ends = zip(("low", "high"), plot.band, strict=True)
        curve |= {end: [line.get(name) for line in lines] for end, name in ends}
    return curve


def _scaled(curves: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The second curve with the standard deviation of the first."""
    (_, first), (label, second) = curves.items()
    if len(first["y"]) < 2 or not (deviation := pstdev(second["y"] or [0.0])):
        return curves
    factor = pstdev(first["y"]) / deviation
    return curves | {label: second | {"y": [factor * y for y in second["y"]]}}


def _targets(run: Run) -> list[Target]:
    """The entropies at which a gate of the objective opens."""
    objective = run.settings.get("objective")
    controllers = objective.get("controllers") if isinstance(objective, Mapping) else None
    return [
        Target(gate["target"], gate["target"], f"target of {name}")
        for name, gate in (controllers.items() if isinstance(controllers, Mapping) else ())
        if isinstance(gate, Mapping) and gate.get("of") is None and is_number(gate.get("target"))
    ]


def _marks(plot: Plot, run: Run, number: int) -> list[Mark]:
    """The findings whose checks read a metric of the figure, and that began at some step."""
    drawn = {name for metric in plot.metrics for name in re.split(" [+/] ", metric)}
    known = [each for each in run.findings if each.name in CHECKS and each.name != "inert-setting"]
    return [
        Mark(each.since, f"{each.name}, {each.when}", number, finding_id(number, each.name))
        for each in known
        if drawn & {*CHECKS[each.name].needs, *CHECKS[each.name].also}
    ]
