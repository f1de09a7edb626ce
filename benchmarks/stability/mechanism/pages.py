"""The tables and the pictures of the measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.stability.conditions import BASE
from benchmarks.stability.mechanism.batches import POLICIES
from benchmarks.stability.mechanism.pictures import draw, measured_rate
from benchmarks.stability.report import table

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


def rows_of(found: Found, part: str) -> Sequence[Any]:
    return found[part]["rows"]


def filled(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A table of cells that name the entries of a row in braces."""
    return table([*columns], [[cell.format(**row) for cell in columns.values()] for row in rows])


def carried(found: Found) -> str:
    """What planted tokens carry."""
    columns = {
        "policy": "{policy}",
        "planted": "{planted:.3%}",
        "their π": "{prob:.1g}",
        "share of Σ g": "{sum:.2%}",
        "share / rate": "{times}",
        "share of Σ g²": "{energy:.2%}",
        "share of the parameters' gradient": "{span}",
        "as many random tokens": "{random:.2%}",
    }
    rows = []
    for row in rows_of(found, "carried"):
        texts = {"times": _span(times(found, row), ".0f")}
        texts["span"] = _span(row["parameters_each"], ".2%")
        rows.append({**row, **texts, "planted": measured_rate(found, row)})
    return filled(columns, rows)


def times(found: Found, row: Mapping[str, Any]) -> list[float]:
    """The share of Σ g of planted tokens, divided by their rate, by rollout."""
    return [each / measured_rate(found, row) for each in row["sum_each"]]


def _span(values: Sequence[float], form: str) -> str:
    """The mean, the lowest and the highest."""
    return f"{mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def sources(found: Found) -> str:
    """Planted tokens beside the spurious tokens that the policy samples itself."""
    columns = {
        "policy": "{policy}",
        "spurious tokens": "{source}",
        "number": "{count}",
        "share of all tokens": "{share:.2%}",
        "their π": "{prob:.1g}",
        **{"π < 0.002": "{rare}", "STAPO's rule: precision": "{precision}", "recall": "{recall}"},
    }
    shown = ("rare", "precision", "recall")
    rows = rows_of(found, "sources")
    return filled(columns, [{**row, **{name: _share(row[name]) for name in shown}} for row in rows])


def bounds(found: Found) -> str:
    """STAPO's bounds."""
    columns = {
        "policy": "{policy}",
        "tokens": "{tokens:,}",
        "largest error of the equality": "{error:.0e}",
        "smallest slack of the bound": "{slack:.0e}",
        "tokens whose bound is not positive": "{vacuous:.0%}",
        "bound / norm², planted": "{tightness:.2f}",
        "bound / norm², π < 0.002": "{tightness_rare:.2f}",
    }
    return filled(columns, rows_of(found, "bounds"))


def judged(found: Found) -> str:
    """Precision and recall of sets of tokens, 1% planted."""
    rows = {(r["policy"], r["set"]): r for r in found["rules"]["rows"] if r["rate"] == 1e-2}
    both = [(kind, x) for kind in POLICIES for x in ("precision", "recall")]
    cells = [
        [title, *(_share(rows[kind, name][x]) for kind, x in both)] for name, title in SETS.items()
    ]
    return table(["tokens", *(f"{kind}: {x}" for kind, x in both)], cells)


def _share(value: float | None) -> str:
    if value is None:
        return "none chosen"
    return f"{value:.0%}" if value >= 0.1 or not value else f"{value:.1%}"


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
    columns = {
        "policy": "{policy}",
        "quadrant": "{quadrant}",
        "predicted": "{predicted:+.2e}",
        "independent logits": "{independent:+.2e}",
        "network, own tokens": "{own:+.2g}, sign {own_signs} of {batches}",
        "network, all tokens": "{all:+.2g}, sign {all_signs} of {batches}",
        "single tokens with the right sign": "{agree:.0%}",
    }
    rows = rows_of(found, "quadrants")
    return filled(columns, [{**row, "quadrant": QUADRANTS[row["quadrant"]]} for row in rows])


def growth(found: Found) -> str:
    """Short runs with planted tokens; a cell has one number a seed."""
    columns = {
        "probability of letters, after / before": ("letters", ".2f"),
        "of wrong digits, after / before": ("digits", ".2f"),
        "accuracy of the last samples": ("accuracy", ".2f"),
        "tokens dropped": ("dropped", ".2%"),
    }
    each: dict[tuple[str, float], list[Any]] = {}
    for row in rows_of(found, "growth"):
        each.setdefault((row["condition"], row["rate"]), []).append(row)
    cells = [
        [f"`{name}`", f"{rate:.1%}" if rate else "0"]
        + [", ".join(format(row[key], form) for row in rows) for key, form in columns.values()]
        for (name, rate), rows in each.items()
    ]
    return table(["objective", "planted", *columns], cells)


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
