"""The report of a study, finished or not: stability.json, stability.md and pictures.

docs/studies.md and the README show the parts of stability.md by their headings.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

from benchmarks.harness import machine, wilson
from benchmarks.stability import analysis, pictures
from benchmarks.stability.analysis import Effect, Pairs
from benchmarks.stability.conditions import BASE, CONDITIONS, GROUPS, TARGETS, objective
from benchmarks.stability.outcomes import Outcome
from benchmarks.stability.plan import (
    BEYOND,
    COLLAPSE,
    CONTROLS,
    FAMILY,
    PARTS,
    RATES,
    SEARCHED,
    Arm,
    Question,
    gates,
    strained,
)
from benchmarks.stability.results import Knob, Results

NAME = "stability"
COMMAND = "python -m benchmarks.stability --runs DIR --out benchmarks/results"


def write(runs: Path, out: Path) -> str:
    """Write the report of the runs below a folder, and return its text.

    Raises:
        RunError: no run has ended there.
    """
    found = Results(runs)
    out.mkdir(parents=True, exist_ok=True)
    parts = {title: make(found) for title, make in REPORT.items()}
    text = f"# {NAME}\n\n" + "\n".join(f"## {title}\n\n{part}\n" for title, part in parts.items())
    (out / f"{NAME}.md").write_text(text, encoding="utf-8")
    (out / f"{NAME}.json").write_text(numbers(found), encoding="utf-8")
    pictures.draw_runs(found, out / f"{NAME}.png")
    pictures.draw_decides(decides(found), out / f"{NAME}-decides.png")
    pictures.draw_band(found, out / f"{NAME}-entropy.png")
    return text


def numbers(found: Results) -> str:
    """All runs as JSON, one a line."""
    head = {"command": COMMAND, "machine": facts(), "planned": found.planned}
    rows = [json.dumps(_rounded(asdict(run))) for run in found.all]
    text = json.dumps(head, indent=1).removesuffix("\n}")
    return f'{text},\n "runs": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"


def _rounded(value: Any) -> Any:
    """Numbers with six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


# The parts.


def state(found: Results) -> str:
    """How far the study is."""
    failed = sum(bool(run.failed) for run in found.all)
    missing = found.planned - len(found.all)
    left = f"**{missing} are missing.**" if missing else "None is missing."
    return (
        f"{len(found.all)} of {found.planned} planned runs ended, {failed} of them failed. {left}"
    )


def conditions(found: Results) -> str:
    """What the objective of each condition changes in that of the base."""
    ran = {run.condition for run in found.all} - {BASE, *GROUPS["band"]}
    names = [name for name in CONDITIONS if name in ran]
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
    """The runs that the learning rates were chosen by."""
    rows = []
    for arm in sorted(PARTS["search"].arms, key=lambda arm: (arm.sampling, arm.rate)):
        if runs := found.of("search", arm):
            chosen = "chosen" if RATES[arm.sampling] == arm.rate else ""
            rows.append([arm.sampling, f"{arm.rate:g}", *_costs(runs), chosen])
    return table(["sampling", "learning rate", *COSTS, ""], rows)


def regime(found: Results) -> str:
    """Every arm of the main comparison."""
    rows = []
    for arm in PARTS["regime"].arms:
        if runs := found.of("regime", arm):
            sums = _sums(runs)
            rule = [_part(sums, "dropped", "trained"), _part(sums, "caught", "judged dropped")]
            rows.append([f"{arm.condition}, {arm.sampling}", *_costs(runs), *rule])
    return table(["arm", *COSTS, "dropped", "of these spurious"], rows)


def family(found: Results) -> str:
    """The primary comparisons."""
    effects = {x.title: analysis.cost(pairs) for x in FAMILY if (pairs := found.pairs(x))}
    chances = {title: each.p for title, each in effects.items()}
    corrected = analysis.holm(chances, len(FAMILY))
    rows = [
        [title, _runs(each), _ratio(each), _chance(chances[title]), _chance(corrected[title])]
        for title, each in effects.items()
    ]
    return table(["comparison", "runs", "generated tokens until 0.85", "p", "p, Holm"], rows)


def secondary(found: Results) -> str:
    """The same comparisons by other measures."""
    rows = []
    for question in FAMILY:
        if pairs := found.pairs(question):
            ratios = [_ratio(analysis.cost(pairs, unit)) for unit in ("steps", "seconds")]
            differences = [_signed(analysis.last(pairs)), _signed(analysis.at_equal_tokens(pairs))]
            rows.append([question.title.replace(" / ", " against "), *ratios, *differences])
    titles = ["steps until 0.85", "CPU seconds until 0.85", "last accuracy"]
    return table(["comparison", *titles, "accuracy at equal generated tokens"], rows)


def controls(found: Results) -> str:
    """Dynamic sampling beside its controls."""
    arms = [("regime", Arm.of(BASE, how)) for how in RATES]
    arms += [("controls", Arm.of(BASE, how)) for how in CONTROLS]
    rows = []
    for part, arm in arms:
        if runs := found.of(part, arm):
            generated = mean(run.tokens[-1] for run in runs)
            trained = _sums(runs)["trained"]
            silent = mean(run.without_signal for run in runs)
            tokens = [f"{each / 1e6:.2f}" for each in (generated, trained / len(runs))]
            rows.append([arm.sampling, f"{arm.steps}", *tokens, f"{silent:.0%}", *_costs(runs)])
    header = ["sampling", "steps", "generated tokens, 10⁶", "trained on, 10⁶"]
    return table([*header, "groups without signal", *COSTS], rows)


def beyond(found: Results) -> str:
    """Who collapses with four updates per rollout."""
    rows = []
    parts = ("beyond", "steeper", "collapse")
    for arm in dict.fromkeys(arm for part in parts for arm in PARTS[part].arms):
        if runs := [run for part in parts for run in found.of(part, arm)]:
            hits = sum(run.collapsed for run in runs)
            low, high = wilson(hits, len(runs))
            ends = [run.last for run in runs]
            entropy = median(run.entropies[-1] for run in runs)
            share = f"{hits} of {len(runs)} [{low:.2f}, {high:.2f}]"
            each = ", ".join(f"{end:.2f}" for end in sorted(ends))
            best = mean(max(run.smooth) for run in runs)
            rows.append(
                [f"{arm.rate:g}", arm.condition, share, each, f"{best:.2f}", f"{entropy:.2f}"]
            )
    header = ["learning rate", "objective", "collapsed", "last accuracy of each run"]
    return table([*header, "highest accuracy", "entropy at the end, nats"], rows)


def band(found: Results) -> str:
    """How long the entropy is near the targets of STARE's gate; dapo-loss has no target."""
    rows = []
    for target in TARGETS:
        for part, name in [*gates(target), ("regime", BASE)]:
            if runs := [r for r in found.of(part, Arm.of(name, "static")) if r.seed == 0]:
                half = runs[0].entropies[len(runs[0].entropies) // 2 :]
                shares = [f"{x:.0%}" for x in (runs[0].in_band[f"{target:g}"], runs[0].weight_on)]
                ends = f"{min(half):.3f} – {max(half):.3f}"
                rows.append([f"{target:g}", name, *shares, ends, f"{runs[0].last:.3f}"])
    header = ["target, nats", "rule", "steps within 20% of the target", "steps with the weight"]
    return table([*header, "entropy in the second half, nats", "last accuracy"], rows)


def decides(found: Results) -> list[Knob]:
    """The effect of each knob."""
    middle, high, low = ([("search", Arm(BASE, how, rate)) for how in RATES] for rate in SEARCHED)
    knobs = [
        Question(f"1 update: rate {title}", [*zip(tried, middle, strict=True)])
        for title, tried in (("× 1.5", high), ("/ 1.5", low))
    ]
    dynamic, *objectives = FAMILY[:4]
    static = "regime", Arm.of(BASE, "static")
    knobs.append(Question("dynamic sampling", dynamic.pairs))
    knobs += [
        Question(f"{how} for static", [(("controls", Arm.of(BASE, how)), static)])
        for how in CONTROLS
    ]
    knobs += [Question(each.title.replace(" / ", " for "), each.pairs) for each in objectives]
    decided = [(knob.title, found.pairs(knob)) for knob in knobs]
    collapsed = strained(BASE, COLLAPSE)
    steep = [*found.of("steeper", collapsed), *found.of("collapse", collapsed)]
    if steep and (less := found.of("beyond", strained(BASE, BEYOND))):
        decided.insert(0, (f"4 updates: rate {COLLAPSE:g} for {BEYOND:g}", [(steep, less)]))
    return [
        (title, analysis.last(x), analysis.cost(x) if _any_reached(x) else None)
        for title, x in decided
        if x
    ]


def _any_reached(pairs: Pairs) -> bool:
    return any(run.reached() is not None for pair in pairs for side in pair for run in side)


def decided(found: Results) -> str:
    """The table of what decides."""
    rows = [
        [name, _runs(end), _signed(end), _ratio(cost) if cost else "– (no run reaches it)"]
        for name, end, cost in decides(found)
    ]
    return table(["knob", "runs", "last accuracy", "generated tokens until 0.85"], rows)


def facts() -> dict[str, str]:
    """The machine and the packages that the study uses, with plain names."""
    named = {"GiB": "memory, GiB", "rlobj": "commit of the report"}
    used = ("processor", "cores", "GiB", "Python", "torch", "transformers", "rlobj")
    return {named.get(name, name): x for name, x in machine().items() if name in used}


def made(found: Results) -> str:
    """Hardware, time, command, and the runs that failed."""
    lines = [f"- {name}: {value}" for name, value in facts().items()]
    each = [run.made for run in found.all if run.made]
    commits = Counter(x["commit"] for x in each)
    cpu, wall = ([x[key] for x in each] for key in ("cpu_seconds", "wall_seconds"))
    lines += [
        f"- a run: {median(cpu):.0f} s CPU (median; {min(cpu):.0f} to {max(cpu):.0f}), one thread",
        f"- {len(each)} runs: {sum(cpu) / 3600:.1f} h CPU, {sum(wall) / 3600:.1f} h wall",
        f"- commits of the runs: {', '.join(f'{x} ({n} runs)' for x, n in commits.items())}",
        f"- command: `{COMMAND}`",
    ]
    lines += [
        f"- **failed**: {run.part}, {run.condition}, {run.sampling}, seed {run.seed}: {run.failed}"
        for run in found.all
        if run.failed
    ]
    return "\n".join(lines)


REPORT: dict[str, Callable[[Results], str]] = {
    "state": state,
    "conditions": conditions,
    "search": search,
    "regime": regime,
    "family": family,
    "secondary": secondary,
    "controls": controls,
    "beyond": beyond,
    "band": band,
    "decides": decided,
    "made": made,
}
"""Heading -> how the part is made."""

# Cells.

COSTS = (
    *("runs", "reached 0.85", "generated tokens until 0.85, 10³"),
    *("steps", "CPU s", "last accuracy"),
)


def _costs(runs: Sequence[Outcome]) -> list[str]:
    """What runs spent until 0.85. A run that did not reach it counts with all that it spent."""
    reached = sum(run.reached() is not None for run in runs)
    cells = [str(len(runs)), str(reached)]
    for unit, scale in (("tokens", 1e-3), ("steps", 1), ("seconds", 1)):
        each = [(run.reached(unit), getattr(run, unit)[-1]) for run in runs]
        spent = [every if reached is None else reached for reached, every in each]
        cells.append(f"{'≥ ' if reached < len(runs) else ''}{scale * geometric_mean(spent):.0f}")
    return [*cells, f"{mean(run.last for run in runs):.3f}"]


def _sums(runs: Sequence[Outcome]) -> Counter[str]:
    return sum((Counter(run.counts) for run in runs), Counter())


def _part(sums: Mapping[str, float], part: str, whole: str) -> str:
    return f"{sums[part] / sums[whole]:.2%}" if sums[whole] and sums[part] else "–"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [list(header), ["---"] * len(header), *rows]
    if len(lines) == 2:
        return "Not run."
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _runs(each: Effect) -> str:
    return "{} and {}".format(*each.runs)


def _ratio(each: Effect) -> str:
    """An effect on log2, as a factor."""
    text = f"× {2**each.difference:.2f}"
    if each.interval:
        text += f" [{2 ** each.interval[0]:.2f}, {2 ** each.interval[1]:.2f}]"
    return text


def _signed(each: Effect) -> str:
    text = f"{each.difference:+.3f}"
    return f"{text} [{each.interval[0]:+.3f}, {each.interval[1]:+.3f}]" if each.interval else text


def _chance(p: float) -> str:
    """A p-value with four digits."""
    return f"{p:.4f}" if p >= 1e-4 else "< 0.0001"
