"""The tables and the pictures of the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.stability.conditions import BASE
from benchmarks.stability.mechanism.batches import POLICIES
from benchmarks.stability.mechanism.pictures import draw, measured_rate
from benchmarks.stability.tables import table

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


def carried(found: Found) -> str:
    """What planted tokens carry."""
    header = (
        *("policy", "planted", "their π", "share of Σ g", "share / rate", "share of Σ g²"),
        *("share of the parameters' gradient", "as many random tokens"),
    )
    return table(
        header,
        [
            [
                row["policy"],
                f"{measured_rate(found, row):.3%}",
                f"{row['prob']:.1g}",
                f"{row['sum']:.2%}",
                _span(times(found, row), ".0f"),
                f"{row['energy']:.2%}",
                _span(row["parameters_each"], ".2%"),
                f"{row['random']:.2%}",
            ]
            for row in found["carried"]["rows"]
        ],
    )


def times(found: Found, row: Mapping[str, Any]) -> list[float]:
    """The share of Σ g of planted tokens, divided by their rate, by rollout."""
    return [each / measured_rate(found, row) for each in row["sum_each"]]


def _span(values: Sequence[float], form: str) -> str:
    """The mean, the lowest and the highest."""
    return f"{mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def sources(found: Found) -> str:
    """Planted tokens beside the spurious tokens that the policy samples itself."""
    header = (
        *("policy", "spurious tokens", "number", "share of all tokens", "their π"),
        *("π < 0.002", "STAPO's rule: precision", "recall"),
    )
    return table(
        header,
        [
            [
                row["policy"],
                row["source"],
                f"{row['count']}",
                f"{row['share']:.2%}",
                f"{row['prob']:.1g}",
                *(_share(row[name]) for name in ("rare", "precision", "recall")),
            ]
            for row in found["sources"]["rows"]
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
    "sources": sources,
    "bounds": bounds,
    "rules": judged,
    "update": update,
    "quadrants": quadrants,
    "growth": growth,
}
"""Name -> its table; docs/stability.md shows them."""
