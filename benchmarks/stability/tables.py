"""The tables of the report: settings, accuracy, differences, entropy, tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median, stdev

import numpy as np

from benchmarks.harness import wilson
from benchmarks.stability import analysis
from benchmarks.stability.analysis import COMPARISONS, LEVEL, Comparison, Interval, Outcome
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
        if found.base(each)
    ]
    about = "" if found.edge else "\n\nThe search found no edge."
    if not found.chosen:
        about = "\n\nThe search is not finished."
    return table(["learning rate", *_BASE, "chosen as"], rows) + about


def chart(found: Results) -> str:
    """The runs of dapo-loss in the settings of the map."""
    if not found.chart:
        return "The map follows the search."
    ran = [each for each in found.chart if found.base(each)]
    if not ran:
        return "The map was not run."
    shown = [each for each in (found.edge, found.stable, *ran) if each is not None]
    rows = [
        [f"{x.learning_rate:g}", x.task, f"{x.updates}, {x.steps}", *_base_cells(found.base(x))]
        for x in shown
    ]
    text = table(["learning rate", "task", "updates per step, steps", *_BASE], rows)
    left = len(found.chart) - len(ran)
    return text + (f"\n\n{left} more settings of the map were not run." if left else "")


_BASE = ("runs", "last accuracy", "degraded", "collapsed", "entropy")


def _base_cells(runs: Sequence[Outcome]) -> list[str]:
    if not runs:
        return ["0", *"–" * (len(_BASE) - 1)]
    last = [run.last for run in runs]
    spread = f" ± {stdev(last):.3f}" if len(last) > 1 else ""
    return [
        _number_of(runs),
        f"{mean(last):.3f}{spread}",
        *(_share(runs, key) for key in ("degraded", "collapsed")),
        f"{_median(runs, 'entropy_first')} → {_median(runs, 'entropy_last')}",
    ]


def powers(found: Results) -> str:
    """The smallest difference that the primary comparison finds with probability 0.8."""
    before = [run.last for run in found.base(found.edge)] if found.edge else []
    if len(before) < 2 or not stdev(before):
        return "The power is computed when the search has found an edge."
    promised = 2**0.5 * stdev(before)
    rows = [[f"two runs of the search, of {len(before)}", f"{promised:.3f}", "–"]]
    spreads, runs, related = [promised], found.of(found.edge), []
    for each in compared(runs, every=False):
        if each.spread:
            spreads.append(each.spread)
            related.append(correlation(runs, each))
            rows.append([f"{each.name} − {each.base}", f"{each.spread:.3f}", related[-1]])
    for row, spread in zip(rows, spreads, strict=True):
        row += [f"{analysis.detectable(spread, n, _STRICTEST):.3f}" for n in (10, 20, 40)]
    header = ["differences", "their standard deviation", "correlation"]
    found_with = (f"found with {n} seeds" for n in (10, 20, 40))
    return f"{_enough(spreads, related)}\n\n{table([*header, *found_with], rows)}"


_STRICTEST = (1 - LEVEL) / COMPARISONS


def _enough(spreads: Sequence[float], related: Sequence[str]) -> str:
    """Whether 20 seeds were enough for the difference that the search had promised.

    Args:
        spreads: standard deviations of differences: that of the search, then those of pairs.
        related: correlations of the pairs.
    """
    promised, *measured = (analysis.detectable(each, 20, _STRICTEST) for each in spreads)
    text = f"By the search, 20 seeds find a true difference of {promised:.3f}."
    if not measured:
        return text
    reached = sum(each <= promised for each in measured)
    answer = "Yes." if reached == len(measured) else "In part." if reached else "No."
    middle, seeds = median(spreads[1:]), 2
    while analysis.power(promised, middle, seeds, _STRICTEST) < 0.8:
        seeds += 1
    helped = sum(float(each) > 0 for each in related if each != "–")
    return (
        f"**{answer}** {text} By the measured differences, they find {min(measured):.3f} to "
        f"{max(measured):.3f}: what was promised holds in {reached} of {len(measured)} "
        f"comparisons. With the median of the measured standard deviations, a difference of "
        f"{promised:.3f} takes {seeds} seeds. Pairing made the spread smaller in {helped} of "
        f"{len(measured)} comparisons: their correlations are {', '.join(related)}."
    )


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


def by_condition(
    header: Sequence[str], runs: Runs, cells: Callable[[list[Outcome]], Sequence[str]]
) -> str:
    """A table with a row for each condition."""
    rows = [[name, *cells(list(each.values()))] for name, each in runs.items()]
    return table(["objective", *header], rows)


def accuracies(runs: Runs) -> str:
    """Accuracy and shares by condition."""

    def cells(each: list[Outcome]) -> list[str]:
        means = (f"{mean(getattr(x, key) for x in each):.3f}" for key in ("best", "area"))
        shares = (_share(each, key) for key in ("degraded", "collapsed"))
        return [_number_of(each), _mean_accuracy([x.last for x in each]), *means, *shares]

    return by_condition(["runs", "last", "best", "area", "degraded", "collapsed"], runs, cells)


def differences(runs: Runs, primary: bool = False) -> str:
    """Paired differences; the primary ones have p-values."""
    holm = corrected(runs) if primary else {}
    rows = []
    for each in compared(runs, every=not primary):
        difference = [f"{each.difference:+.3f}", _signed(each.interval)]
        if (p_holm := holm.get((each.name, each.base))) is not None:
            difference += [_signed(each.wide), chance(each.p), chance(p_holm)]
        rows.append([*_pair(each), *difference])
    header = ["comparison", "pairs", "difference in last", "95%"]
    return table([*header, *(["99.3%", "p", "p, Holm"] if holm else [])], rows)


def _pair(each: Comparison) -> list[str]:
    return [f"{each.name} − {each.base}", str(len(each.seeds))]


def share_tests(runs: Runs) -> str:
    """McNemar's test of the shares in the primary comparisons."""
    pairs = compared(runs, every=False)
    rows = [[*_pair(each), chance(each.degraded), chance(each.collapsed)] for each in pairs]
    return table(["comparison", "pairs", "p, degraded", "p, collapsed"], rows)


def entropies(runs: Runs) -> str:
    """The course of the entropy by condition."""

    def cells(each: list[Outcome]) -> list[str]:
        values = [run for run in each if not run.failed]
        ends = sorted(run.entropy_last for run in values if run.entropy_last is not None)
        courses = [run.entropy_course for run in values]
        return [
            str(len(values)),
            *(_median(values, key) for key in ("entropy_first", "entropy_last")),
            f"{ends[0]:.3f} – {ends[-1]:.3f}" if ends else "–",
            *(str(courses.count(key)) for key in ("collapsed", "exploded")),
            _mean_share(values, "scored", ".0%"),
        ]

    header = ["runs", "first 10 steps", "last 20 steps", "lowest – highest run"]
    header += ["entropy collapsed", "entropy exploded", "tokens covered"]
    return by_condition(header, runs, cells)


def tokens(runs: Runs) -> str:
    """What the rules touch, what they catch, and who carries the gradient."""

    def cells(each: list[Outcome]) -> list[str]:
        values = [run for run in each if not run.failed]
        names = values[0].counts if values else ()
        sums = {key: sum(run.counts[key] for run in values) for key in names}
        parts = (_ratio(sums, f"spurious {x}", f"right {x}", ".2%") for x in ("first", "last"))
        return [
            _mean_share(values, "touched", ".3%"),
            _ratio(sums, "caught", "judged dropped", ".1%"),
            _ratio(sums, "caught", "spurious", ".1%") if sums.get("dropped") else "–",
            " → ".join(parts) if sums.get("judged") else "–",
            *(_mean_share(values, key, ".0%") for key in ("largest token", "largest 1%")),
        ]

    header = ["tokens touched", "precision", "recall", "spurious tokens in right responses"]
    header += [f"share of the sum of norms: {part}" for part in ("one token", "1% of the tokens")]
    return by_condition(header, runs, cells)


# Cells.


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(header), ["---"] * len(header), *rows]
    if len(lines) == 2:
        return "Not run."
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number_of(runs: Sequence[Outcome]) -> str:
    failed = sum(bool(run.failed) for run in runs)
    return f"{len(runs)}, {failed} failed" if failed else str(len(runs))


def _mean_accuracy(values: Sequence[float]) -> str:
    """A mean of accuracies and its interval, which is cut at 0 and 1."""
    text = f"{mean(values):.3f}"
    if interval := analysis.t_interval(values):
        low, high = max(interval[0], 0.0), min(interval[1], 1.0)
        text += f" [{low:.3f}, {high:.3f}]"
    return text


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


def chance(p: float) -> str:
    """A p-value with four digits."""
    return f"{p:.4f}" if p >= 1e-4 else "< 0.0001"


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
