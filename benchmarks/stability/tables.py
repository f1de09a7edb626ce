"""The tables of the report: settings, accuracy, differences, entropy, tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median, stdev

import numpy as np

from benchmarks.stability import analysis
from benchmarks.stability.analysis import COMPARISONS, LEVEL, Comparison, Interval, Outcome, wilson
from benchmarks.stability.conditions import BASE, CONDITIONS, objective
from benchmarks.stability.results import CORE, PRIMARY, Results, Runs


def core(runs: Runs) -> Runs:
    """The conditions of the core with runs that ended."""
    return {name: each for name, each in runs.items() if name in CORE}


def compared(runs: Runs, every: bool = True) -> list[Comparison]:
    """The primary comparisons of a setting; with `every`, also other conditions with the base."""
    more = [(name, BASE) for name in runs if every and name not in CORE]
    made = (analysis.compare(name, base, runs) for name, base in [*PRIMARY, *more])
    return [each for each in made if each]


def corrected(runs: Runs) -> dict[tuple[str, str], float]:
    """Holm's p-values of the primary comparisons."""
    return analysis.holm({(x.name, x.base): x.p for x in compared(runs, every=False)})


def conditions(found: Results) -> str:
    """What the objective of each condition changes in that of the base."""
    ran = {name for runs in found.runs.values() for name in runs}
    names = [name for name in CONDITIONS if name != BASE and (name in CORE or name in ran)]
    return table(["objective", f"what differs from {BASE}"], [[n, _changes(n)] for n in names])


def _changes(name: str) -> str:
    """Rules, settings of the surrogate, and parts of the formula that the base does not have."""
    ours, base = objective(name), objective(BASE)
    rules = {"drop": ours.drop_rule, "keep": ours.keep_rule, "reweight": ours.weight}
    parts = [f"{key}: `{rule}`" for key, rule in rules.items() if rule is not None]
    same = type(ours.surrogate) is type(base.surrogate)
    for key in type(base.surrogate).model_fields if same else ():
        old, new = getattr(base.surrogate, key), getattr(ours.surrogate, key)
        if old != new:
            parts.append(f"surrogate, {key}: {'none' if old is None else old} → {new}")
    known = base.explain().formula
    for line in ours.explain().formula:
        symbol, _, text = line.partition("  ")
        if line not in known and text and "(1/Z" not in line and not (symbol == "S" and same):
            parts.append(f"{symbol}: `{text.partition('): ')[0]})`")
    return "; ".join(parts).replace("|", "\\|")


def search(found: Results) -> str:
    """The runs of dapo-loss that the settings were chosen by."""
    beyond = found.chosen.beyond if found.chosen else None
    chosen = {found.edge: "edge", found.stable: "stable", beyond: "beyond"}
    rows = [
        [f"{each.learning_rate:g}", *_base_cells(found.base(each)), chosen.get(each, "")]
        for each in found.searched
    ]
    about = "" if found.edge else "\n\nThe search found no edge."
    if not found.chosen:
        about = "\n\nThe search is not finished."
    return table(["learning rate", *_BASE, "chosen as"], rows) + about


def chart(found: Results) -> str:
    """The runs of dapo-loss in the settings of the map."""
    if not found.chart:
        return "The map follows the search."
    rows = []
    for each in (found.edge, found.stable, *found.chart):
        if each is not None:
            size = [f"{each.learning_rate:g}", each.task, str(each.updates), str(each.steps)]
            rows.append([*size, *_base_cells(found.base(each))])
    return table(["learning rate", "task", "updates per step", "steps", *_BASE], rows)


_BASE = ("runs", "last accuracy: mean", "from – to", "degraded", "collapsed", "entropy")


def _base_cells(runs: Sequence[Outcome]) -> list[str]:
    if not runs:
        return ["0", *"–" * (len(_BASE) - 1)]
    last = [run.last for run in runs]
    spread = f" ± {stdev(last):.3f}" if len(last) > 1 else ""
    return [
        _number_of(runs),
        f"{mean(last):.3f}{spread}",
        f"{min(last):.3f} – {max(last):.3f}",
        *(_share(runs, key) for key in ("degraded", "collapsed")),
        f"{_median(runs, 'entropy_first')} → {_median(runs, 'entropy_last')}",
    ]


def powers(found: Results) -> str:
    """The smallest difference that the primary comparison finds with probability 0.8."""
    before = [run.last for run in found.base(found.edge)] if found.edge else []
    spreads = {}
    if len(before) > 1:
        about = f"as if pairing did not help, from the {len(before)} runs of the search at the edge"
        spreads[about] = 2**0.5 * stdev(before)
    runs, related = found.of(found.edge), dict.fromkeys(spreads, "–")
    for each in compared(runs, every=False):
        if each.spread:
            title = f"{each.name} − {each.base}, from {len(each.seeds)} pairs"
            spreads[title], related[title] = each.spread, correlation(runs, each)
    if not spreads:
        return "The power is computed when the search has found an edge."
    seeds = (5, 10, 20, 40, 80)
    rows = [
        [
            title,
            f"{spread:.3f}",
            related[title],
            *(f"{analysis.detectable(spread, n, (1 - LEVEL) / COMPARISONS):.3f}" for n in seeds),
            f"{analysis.detectable(spread, 20, 1 - LEVEL):.3f}",
        ]
        for title, spread in spreads.items()
    ]
    header = [
        "differences",
        "their standard deviation",
        "correlation",
        *(f"{n} seeds" for n in seeds),
    ]
    return table([*header, "20 seeds, one comparison alone"], rows)


def correlation(runs: Runs, each: Comparison) -> str:
    """That of the last accuracies of two conditions over seeds; pairing helps if it is positive."""
    ours, base = ([runs[name][s].last for s in each.seeds] for name in (each.name, each.base))
    varied = len(each.seeds) > 2 and stdev(ours) > 0 and stdev(base) > 0
    return f"{np.corrcoef(ours, base)[0, 1]:+.2f}" if varied else "–"


def by_flag(found: Results) -> str:
    """The conditions beside the core, and the settings that are neither searched nor in the map."""
    parts = []
    for setting in found.runs:
        runs = found.of(setting)
        if setting in (*found.searched, *found.chart):
            more = {name: each for name, each in runs.items() if name not in CORE}
            runs = {name: runs[name] for name in runs if more and name == BASE} | more
        if runs:
            parts.append(f"{setting}:\n\n{described(runs)}")
    return "\n\n".join(parts) or "Nothing was trained by flag."


def described(runs: Runs) -> str:
    """All tables of runs that no conclusion is drawn from."""
    if not runs:
        return "Not run."
    return "\n\n".join((accuracies(runs), differences(runs), entropies(runs), tokens(runs)))


def accuracies(runs: Runs) -> str:
    """Accuracy and shares by condition."""
    rows = []
    for name, each in runs.items():
        values = list(each.values())
        rows.append(
            [
                name,
                _number_of(values),
                *(_mean([getattr(x, key) for x in values]) for key in ("last", "best", "area")),
                *(_share(values, key) for key in ("degraded", "collapsed")),
            ]
        )
    return table(["objective", "runs", "last", "best", "area", "degraded", "collapsed"], rows)


def differences(runs: Runs, primary: bool = False) -> str:
    """Paired differences; the primary ones have p-values."""
    holm = corrected(runs) if primary else {}
    rows = []
    for each in compared(runs, every=not primary):
        more = []
        if (p_holm := holm.get((each.name, each.base))) is not None:
            more = [_signed(each.wide), f"{each.p:.4f}", f"{p_holm:.4f}"]
            more += [f"{each.degraded:.3f}", f"{each.collapsed:.3f}"]
        rows.append(
            [
                f"{each.name} − {each.base}",
                str(len(each.seeds)),
                f"{each.difference:+.3f}",
                _signed(each.interval),
                *more,
            ]
        )
    header = ["comparison", "pairs", "difference in last", "95%"]
    more = ["99.3%", "p", "p, Holm", "degraded: p", "collapsed: p"] if holm else []
    return table([*header, *more], rows)


def entropies(runs: Runs) -> str:
    """The course of the entropy by condition."""
    rows = []
    for name, each in runs.items():
        values = [run for run in each.values() if not run.failed]
        ends = sorted(run.entropy_last for run in values if run.entropy_last is not None)
        rows.append(
            [
                name,
                str(len(values)),
                _median(values, "entropy_first"),
                _median(values, "entropy_last"),
                f"{ends[0]:.3f} – {ends[-1]:.3f}" if ends else "–",
                *(
                    f"{sum(run.entropy_course == key for run in values)}"
                    for key in ("collapsed", "exploded")
                ),
                _mean_share(values, "scored", ".0%"),
            ]
        )
    header = ["objective", "runs", "first 10 steps", "last 20 steps", "from – to"]
    return table([*header, "collapsed", "exploded", "tokens that it covers"], rows)


def tokens(runs: Runs) -> str:
    """What the rules touch, what they catch, and who carries the gradient."""
    rows = []
    for name, each in runs.items():
        values = [run for run in each.values() if not run.failed]
        sums = {
            key: sum(run.counts[key] for run in values)
            for key in (values[0].counts if values else ())
        }
        rows.append(
            [
                name,
                _mean_share(values, "touched", ".3%"),
                _ratio(sums, "caught", "judged dropped", ".1%"),
                _ratio(sums, "caught", "spurious", ".1%") if sums.get("dropped") else "–",
                f"{_ratio(sums, 'spurious first', 'right first', '.2%')} → "
                f"{_ratio(sums, 'spurious last', 'right last', '.2%')}",
                *(_mean_share(values, key, ".0%") for key in ("largest token", "largest 1%")),
            ]
        )
    header = ["objective", "tokens touched", "precision", "recall"]
    header += ["spurious tokens in right responses", "gradient norm in one token", "in 1%"]
    return table(header, rows)


# Cells.


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(header), ["---"] * len(header), *rows]
    if len(lines) == 2:
        return "Not run."
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number_of(runs: Sequence[Outcome]) -> str:
    failed = sum(bool(run.failed) for run in runs)
    return f"{len(runs)}, {failed} failed" if failed else str(len(runs))


def _mean(values: Sequence[float]) -> str:
    interval = analysis.t_interval(values)
    return f"{mean(values):.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def count(runs: Sequence[Outcome], key: str) -> str:
    return f"{sum(getattr(run, key) for run in runs)} of {len(runs)}"


def _share(runs: Sequence[Outcome], key: str) -> str:
    low, high = wilson(sum(getattr(run, key) for run in runs), len(runs))
    return f"{count(runs, key)} [{low:.2f}, {high:.2f}]"


def _median(runs: Sequence[Outcome], key: str) -> str:
    values = [getattr(run, key) for run in runs if getattr(run, key) is not None]
    return f"{median(values):.3f}" if values else "–"


def _mean_share(runs: Sequence[Outcome], key: str, form: str) -> str:
    values = [run.shares[key] for run in runs if run.shares.get(key) is not None]
    if values and not any(values):
        return "0"
    return format(mean(values), form) if values else "–"  # pyright: ignore


def _ratio(sums: Mapping[str, float], part: str, whole: str, form: str) -> str:
    return format(sums[part] / sums[whole], form) if sums.get(whole) else "–"


def _signed(interval: Interval | None) -> str:
    return f"[{interval[0]:+.3f}, {interval[1]:+.3f}]" if interval else "–"


def signed_difference(each: Comparison) -> str:
    return f"{each.name} − {each.base} {each.difference:+.3f} {_signed(each.interval)}"


def spans(seeds: Sequence[int]) -> str:
    """`0 to 4, 7`."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    shown = (f"{part[0]} to {part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
    return ", ".join(shown)
