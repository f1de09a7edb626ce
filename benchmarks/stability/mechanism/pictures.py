"""The pictures of the measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.stability.conditions import BASE
from benchmarks.stability.mechanism.batches import POLICIES
from benchmarks.stability.mechanism.parts import RATES

Found = Mapping[str, Any]


def measured_rate(found: Found, row: Mapping[str, Any]) -> float:
    """Planted tokens for each token, as planted: a rollout has a whole number of them.

    The number of tokens of a rollout is that of the row of 1%, within 0.5%: there, about 125 tokens
    are planted.
    """
    [many] = [
        each
        for each in found["carried"]["rows"]
        if (each["policy"], each["rate"]) == (row["policy"], max(RATES))
    ]
    return row["tokens"] * many["rate"] / many["tokens"]


def draw(found: Found, out: Path) -> None:
    """The two pictures."""
    from matplotlib.figure import Figure

    for name, (panels, under) in {
        "mechanism.png": ((_draw_carried, _draw_update), MEANING),
        "mechanism-rules.png": ((_draw_growth, _draw_thresholds), MEANING_OF_RULES),
    }.items():
        figure = Figure((8.4, 6.2), layout="constrained")
        for axis, panel in zip(figure.subplots(1, 2), panels, strict=True):
            panel(axis, found)
            axis.spines[["top", "right"]].set_visible(False)
        figure.supxlabel(under, fontsize=8, x=0.01, ha="left", ma="left")
        figure.savefig(out / name, dpi=110)


MEANING = """\
Prepared: the policy from which every run starts. Sharp: the same with less entropy, for which
planted tokens are less likely. Left: means over 8 rollouts. "Logits": sum of the norms of the
tokens' gradients by their own logits. "Parameters": norm of their summed gradient by the
parameters. Right: 1% planted. "perfect rule": dapo-loss without exactly the planted tokens.
"stapo, any entropy": without the entropy condition of its rule."""
MEANING_OF_RULES = """\
Left: runs of 20 steps, two seeds each. The number beside the objective is the rate of planted
tokens. The probability is that of all letters, or of all wrong digits, on valid derivations of
held-out problems. "perfect rule": drops what the judge calls spurious. Right: four rollouts, 1%
planted; the points of a line are limits of π from 0.0002 to 0.5. Of the spurious tokens that a
policy samples itself, the rule finds far fewer: see the page."""


def _color(number: int) -> str:
    from rlobj.reporting.figures import COLORS

    return COLORS[number]


def _draw_carried(axis: Any, found: Found) -> None:
    rows = found["carried"]["rows"]
    for number, kind in enumerate(POLICIES):
        own = [row for row in rows if row["policy"] == kind]
        rates = [measured_rate(found, row) for row in own]
        for key, style, text in (
            ("sum", "o-", "planted, logits"),
            ("parameters", "s--", "planted, parameters"),
            ("random", "x:", "random tokens, parameters"),
        ):
            values = [row[key] for row in own]
            axis.plot(rates, values, style, color=_color(number), label=f"{kind}: {text}")
    axis.plot(RATES, RATES, color="0.5", linewidth=1, label="share = rate")
    axis.set(xscale="log", yscale="log", xlabel="share of all tokens")
    axis.set(ylabel="share of the gradient", ylim=(5e-5, 1))
    axis.set_yticks([1e-4, 1e-3, 1e-2, 1e-1, 1], ["0.01%", "0.1%", "1%", "10%", "100%"])
    axis.set_yticks([], minor=True)
    axis.set_xticks(RATES, ["0.01%", "0.1%", "1%"])
    axis.set_title("Share of the gradient that planted tokens carry", fontsize=10)
    axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(-0.05, -0.13))


def _draw_update(axis: Any, found: Found) -> None:
    names = ("stare", "random", "ar", "lopti", "grpo", "20-entropy", "stapo")
    names = (*names, "stapo, any entropy", "perfect rule")
    rows = {(r["policy"], r["condition"]): r["each"] for r in found["update"]["rows"]}
    for number, kind in enumerate(POLICIES):
        for i, name in enumerate(names):
            apart = [a - b for a, b in zip(rows[kind, name], rows[kind, BASE], strict=True)]
            place = i + 0.4 * number - 0.2
            label = f"{kind}, mean of {len(apart)} rollouts" if i == 0 else None
            axis.barh(place, mean(apart), height=0.36, color=_color(number), label=label)
            line = "one rollout" if i == number == 0 else None
            ticks = [place] * len(apart)
            axis.plot(apart, ticks, "|", color="black", markersize=5, label=line)
    axis.axvline(0, color="0.5", linewidth=1)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel(f"change of log π, minus that of {BASE}, nats", fontsize=8)
    axis.set_title("Planted tokens: effect of one update", fontsize=10)
    axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(-0.05, -0.13))


def _draw_growth(axis: Any, found: Found) -> None:
    rows = found["growth"]["rows"]
    cases = list(dict.fromkeys((row["condition"], row["rate"]) for row in rows))
    titles = [f"{name}, {rate:.1%}" if rate else f"{name}, none" for name, rate in cases]
    for number, (key, text) in enumerate((("letters", "letters"), ("digits", "wrong digits"))):
        for i, case in enumerate(cases):
            each = [r[key] for r in rows if (r["condition"], r["rate"]) == case]
            place = i + 0.3 * number - 0.15
            label = f"{text}, one seed a point" if i == 0 else None
            axis.plot(each, [place] * len(each), "os"[number], color=_color(number), label=label)
    axis.axvline(1, color="0.5", linewidth=1, label="no change")
    axis.set_yticks(range(len(cases)), titles)
    axis.invert_yaxis()
    axis.set_xlabel("probability after 20 steps / before", fontsize=9)
    axis.set_title("Spurious tokens after 20 steps", fontsize=10)
    axis.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.4, -0.14), ncols=3)


def _draw_thresholds(axis: Any, found: Found) -> None:
    rows = found["thresholds"]["rows"]
    for number, kind in enumerate(POLICIES):
        for tau_h, style in ((1.0, "o-"), (0.8, "s--")):
            own = [r for r in rows if r["policy"] == kind and r["tau_h"] == tau_h]
            text = f"{kind}: " + ("any entropy" if tau_h == 1 else "lowest 80% of the entropies")
            values = [row["precision"] for row in own]
            recall = [row["recall"] for row in own]
            axis.plot(recall, values, style, color=_color(number), markersize=4, label=text)
            [paper] = [row for row in own if row["tau_p"] == 0.002]
            star = "limit of the paper, π < 0.002" if number == 0 and tau_h == 1 else None
            place = paper["recall"], paper["precision"]
            axis.plot(*place, "*", color="black", markersize=9, label=star, linestyle="none")
    axis.set(xlabel="recall of planted tokens", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.03))
    axis.set_title("STAPO's rule on planted tokens", fontsize=10)
    axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(-0.05, -0.13))
