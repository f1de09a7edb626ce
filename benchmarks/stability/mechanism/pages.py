"""The tables and the pictures of the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.stability.conditions import BASE
from benchmarks.stability.mechanism.batches import POLICIES
from benchmarks.stability.mechanism.parts import RATES

Found = Mapping[str, Any]
SETS = {
    "stapo": "`stapo`: A > 0, π < 0.002, low H",
    "A > 0, rare": "A > 0, π < 0.002",
    "rare, certain": "π < 0.002, low H",
    "A > 0, certain": "A > 0, low H",
    "rare": "π < 0.002",
    "certain": "low H",
    "A > 0": "A > 0",
    "20-entropy": "dropped by `20-entropy`",
    "stare": "reweighted by `stare`",
    "ar": "smallest weights of `ar`",
    "random": "`random`",
    "lp-reg": "protected by `lp-reg`",
    "clip-cov": "dropped by `clip-cov`",
    "kl-cov": "penalised by `kl-cov`",
}
QUADRANTS = {
    "positive_likely": "A > 0, likely",
    "positive_surprising": "A > 0, surprising",
    "negative_likely": "A < 0, likely",
    "negative_surprising": "A < 0, surprising",
}


def write(found: Found, out: Path) -> None:
    """Write mechanism.md and the pictures."""
    parts = {name: make(found) for name, make in TABLES.items()}
    seconds = sum(part["cpu_seconds"] for part in found.values() if isinstance(part, dict))
    facts = "; ".join(f"{name} {value}" for name, value in found["carried"]["machine"].items())
    parts["made"] = f"`{found['command']}`, {seconds:.0f} CPU seconds; {facts}"
    text = "\n\n".join(f"## {name}\n\n{part}" for name, part in parts.items())
    (out / "mechanism.md").write_text(f"# mechanism\n\n{text}\n", encoding="utf-8")
    draw(found, out)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def carried(found: Found) -> str:
    """What planted tokens carry."""
    header = (
        *("policy", "planted", "their π", "share of Σ g", "share of Σ g²"),
        *("share of the parameters' gradient", "as many random tokens"),
    )
    return table(
        header,
        [
            [
                row["policy"],
                f"{row['rate']:.2%}",
                f"{row['prob']:.1g}",
                f"{row['sum']:.2%}",
                f"{row['energy']:.2%}",
                f"{row['parameters']:.2%}",
                f"{row['random']:.2%}",
            ]
            for row in found["carried"]["rows"]
        ],
    )


def bounds(found: Found) -> str:
    """STAPO's bounds."""
    header = (
        *("policy", "tokens", "largest error of the equality", "smallest slack of the bound"),
        *(
            "tokens whose bound is not positive",
            "bound / norm², planted",
            "bound / norm², π < 0.002",
        ),
    )
    return table(
        header,
        [
            [
                row["policy"],
                f"{row['tokens']:,}",
                f"{row['error']:.0e}",
                f"{row['slack']:.0e}",
                f"{row['vacuous']:.0%}",
                f"{row['tightness']:.2f}",
                f"{row['tightness_rare']:.2f}",
            ]
            for row in found["bounds"]["rows"]
        ],
    )


def judged(found: Found) -> str:
    """Precision and recall of sets of tokens, 1% planted."""
    rows = {(r["policy"], r["set"]): r for r in found["rules"]["rows"] if r["rate"] == 1e-2}
    header = ["tokens", *(f"{kind}: {x}" for kind in POLICIES for x in ("precision", "recall"))]
    cells = [
        [
            title,
            *(_share(rows[kind, name][x]) for kind in POLICIES for x in ("precision", "recall")),
        ]
        for name, title in SETS.items()
    ]
    return table(header, cells)


def _share(value: float | None) -> str:
    return (
        "none chosen"
        if value is None
        else f"{value:.0%}"
        if value >= 0.1 or not value
        else f"{value:.1%}"
    )


def update(found: Found) -> str:
    """What one update does to planted tokens; objectives with the same update are in one row."""
    by: dict[tuple[float, ...], list[str]] = {}
    rows = {(r["policy"], r["condition"]): r for r in found["update"]["rows"]}
    for name in dict.fromkeys(name for _, name in rows):
        key = tuple(x for kind in POLICIES for x in rows[kind, name]["each"])
        by.setdefault(key, []).append(name)
    header = ["objective", *(f"{k}: {x}" for k in POLICIES for x in ("planted", "difference"))]
    cells = []
    for names in by.values():
        cells.append([", ".join(f"`{name}`" for name in names)])
        for kind in POLICIES:
            row, base = rows[kind, names[0]], rows[kind, BASE]
            apart = [a - b for a, b in zip(row["each"], base["each"], strict=True)]
            least, most = f"{min(apart):+.4f}", f"{max(apart):+.4f}"
            own = names[0] == BASE
            cells[-1] += [
                f"{row['planted']:+.4f}",
                "–" if own else f"{mean(apart):+.4f} ({least} to {most})",
            ]
    return table(header, cells)


def quadrants(found: Found) -> str:
    """STARE's quadrants."""
    header = (
        *("policy", "quadrant", "predicted", "independent logits"),
        *("network, own tokens", "network, all tokens", "single tokens with the right sign"),
    )
    rows = []
    for row in found["quadrants"]["rows"]:
        of = row["batches"]
        rows.append(
            [
                row["policy"],
                QUADRANTS[row["quadrant"]],
                f"{row['predicted']:+.2e}",
                f"{row['independent']:+.2e}",
                f"{row['own']:+.2g}, sign {row['own_signs']} of {of}",
                f"{row['all']:+.2g}, sign {row['all_signs']} of {of}",
                f"{row['agree']:.0%}",
            ]
        )
    return table(header, rows)


def growth(found: Found) -> str:
    """Short runs with planted tokens."""
    each: dict[tuple[str, float], list[Any]] = {}
    for row in found["growth"]["rows"]:
        each.setdefault((row["condition"], row["rate"]), []).append(row)

    def cell(rows: Sequence[Any], name: str, form: str) -> str:
        return ", ".join(format(row[name], form) for row in rows)

    header = (
        *("objective", "planted", "probability of letters, after / before"),
        *("of wrong digits, after / before", "accuracy of the last samples", "tokens dropped"),
    )
    return table(
        header,
        [
            [
                f"`{name}`",
                f"{rate:.1%}" if rate else "0",
                cell(rows, "letters", ".2f"),
                cell(rows, "digits", ".2f"),
                cell(rows, "accuracy", ".2f"),
                cell(rows, "dropped", ".2%"),
            ]
            for (name, rate), rows in each.items()
        ],
    )


TABLES = {
    "carried": carried,
    "bounds": bounds,
    "rules": judged,
    "update": update,
    "quadrants": quadrants,
    "growth": growth,
}
"""Name -> its table; docs/stability.md shows them."""


def draw(found: Found, out: Path) -> None:
    """The two pictures."""
    from matplotlib.figure import Figure

    for name, panels in {
        "mechanism.png": (_draw_carried, _draw_update),
        "mechanism-rules.png": (_draw_growth, _draw_thresholds),
    }.items():
        figure = Figure((8, 3.9), layout="constrained")
        for axis, panel in zip(figure.subplots(1, 2), panels, strict=True):
            panel(axis, found)
            axis.spines[["top", "right"]].set_visible(False)
        figure.savefig(out / name, dpi=110)


def _color(number: int) -> str:
    from rlobj.reporting.figures import COLORS

    return COLORS[number]


def _draw_carried(axis: Any, found: Found) -> None:
    rows = found["carried"]["rows"]
    for number, kind in enumerate(POLICIES):
        own = [row for row in rows if row["policy"] == kind]
        rates = [row["rate"] for row in own]
        for key, style, text in (
            ("sum", "o-", "by logits"),
            ("parameters", "s--", "by parameters"),
            ("random", "x:", "as many random tokens"),
        ):
            values = [row[key] for row in own]
            axis.plot(rates, values, style, color=_color(number), label=f"{kind}, {text}")
    axis.plot(RATES, RATES, color="0.5", linewidth=1, label="share = rate")
    axis.set(xscale="log", yscale="log", xlabel="planted tokens, share of all tokens")
    axis.set(ylabel="share of the gradient", ylim=(3e-5, 20))
    axis.set_yticks([1e-4, 1e-3, 1e-2, 1e-1, 1], ["0.01%", "0.1%", "1%", "10%", "100%"])
    axis.set_yticks([], minor=True)
    axis.set_xticks(RATES, ["0.01%", "0.1%", "1%"])
    axis.set_title("Planted tokens carry more than their share", fontsize=10)
    axis.legend(fontsize=7, frameon=False, loc="upper left")


def _draw_update(axis: Any, found: Found) -> None:
    names = ("stare", "random", "ar", "grpo", "20-entropy", "stapo", "stapo, any entropy")
    names = (*names, "perfect rule")
    rows = {(r["policy"], r["condition"]): r["each"] for r in found["update"]["rows"]}
    for number, kind in enumerate(POLICIES):
        for i, name in enumerate(names):
            apart = [a - b for a, b in zip(rows[kind, name], rows[kind, BASE], strict=True)]
            place = i + 0.4 * number - 0.2
            label = kind if i == 0 else None
            axis.barh(place, mean(apart), height=0.36, color=_color(number), label=label)
            axis.plot(apart, [place] * len(apart), "|", color="black", markersize=5)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel(f"change of log π, minus that of {BASE}, nats", fontsize=9)
    axis.set_title("One update: STAPO's rule removes a half", fontsize=10)
    axis.legend(fontsize=7, frameon=False, loc="upper left")


def _draw_growth(axis: Any, found: Found) -> None:
    rows = found["growth"]["rows"]
    cases = list(dict.fromkeys((row["condition"], row["rate"]) for row in rows))
    titles = [f"{name}, {rate:.1%}" if rate else f"{name}, none" for name, rate in cases]
    for number, (key, text) in enumerate((("letters", "letters"), ("digits", "wrong digits"))):
        for i, case in enumerate(cases):
            each = [r[key] for r in rows if (r["condition"], r["rate"]) == case]
            place = i + 0.3 * number - 0.15
            label = text if i == 0 else None
            axis.plot(each, [place] * len(each), "os"[number], color=_color(number), label=label)
    axis.axvline(1, color="0.5", linewidth=1)
    axis.set_yticks(range(len(cases)), titles)
    axis.invert_yaxis()
    axis.set_xlabel("probability after 20 steps / before", fontsize=9)
    axis.set_title("Planted tokens grow in 20 steps", fontsize=10)
    axis.legend(fontsize=7, frameon=False)


def _draw_thresholds(axis: Any, found: Found) -> None:
    rows = found["thresholds"]["rows"]
    for number, kind in enumerate(POLICIES):
        for tau_h, style in ((1.0, "o-"), (0.8, "s--")):
            own = [r for r in rows if r["policy"] == kind and r["tau_h"] == tau_h]
            text = f"{kind}, any entropy" if tau_h == 1 else f"{kind}, lowest 80%"
            values = [row["precision"] for row in own]
            recall = [row["recall"] for row in own]
            axis.plot(recall, values, style, color=_color(number), markersize=4, label=text)
            [paper] = [row for row in own if row["tau_p"] == 0.002]
            axis.plot(paper["recall"], paper["precision"], "*", color="black", markersize=9)
    axis.set(xlabel="recall of planted tokens", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.03))
    axis.set_title("Thresholds of STAPO's rule; ★: τ_p = 0.002", fontsize=10)
    axis.legend(fontsize=7, frameon=False, loc="lower left")
