"""The verifier beside math-verify, verl's scorer and TRL's reward: errors and speed.

Errors are counted on the blind half, `tests/answers/blind`: rows on which nobody has mended the
verifier. A label follows from the way in which a row was made, so it decides where graders differ.
A false positive is a wrong answer that is judged right. A false negative is a right answer that is
not judged right; an undecided one is among them. Rows on which fair judges may differ count in no
error: "disputable" is how many of them are judged as our policy says.

The first interval, Wilson's at 95%, takes rows as independent. They are not: a grammar made the
rows of a form, and they fail together. The second one draws whole forms with replacement
(bootstrap, 95%): it says what other forms of this kind could give. It is empty if no form fails.
Neither says how often such forms occur in the output of a model.

"differs" counts the rows with another verdict than rlobj's, and "rlobj right" those of them on
which rlobj agrees with the label. A response has 10 s with rlobj and 60 s with the others.
math-verify is called as its authors advise: both sides in a box, gold first. TRL is called with the
gold as it is, as its reward takes it from the data, and again with the gold in dollar signs.

Speed is answers per CPU second at one thread, worker processes included: `integers` are short
responses with distinct golds, `mixed` are responses of 10,000 characters with golds of every kind;
half of the answers are wrong.

The others' verdicts are kept in results/verifier-verdicts.json, and used again for the same rows
and versions; `--full` asks all graders again, which takes about 20 minutes. The limits of verl and
TRL are by the clock, so a busy machine can make them refuse more. verl has an environment of its
own: `.ci/verl` makes it, and RLOBJ_VERL_VENV names its folder.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import graders
from benchmarks.harness import ROOT, VERL, Table, ask, main, note, wilson
from rlobj.answers import MathVerifier, verifier_version

FILLER = (
    "We consider the function $f(x)=x^2+1$ and note that {it is} even (see above), so 3 < 4 and "
    "[1,2] holds. Therefore the sum is 12.\n"
)
SPEED = {"integers": 2000, "mixed": 200}
SUITES = ("pairs", "outputs", "attacks", "exam")
DOLLARS = "trl, gold as LaTeX"
GRADERS = ("rlobj", *graders.KNOWN, DOLLARS)
DRAWS = 2000
BLIND = ROOT / "tests" / "answers" / "blind"
KEPT = ROOT / "benchmarks" / "results" / "verifier-verdicts.json"
LETTERS = {True: "r", False: "w", None: "-"}
KINDS = {
    "integer": r"-?[\d,{}!\\]+",
    "number": r"-?[\d.,e+-]+|-?\\[dt]?frac\{?-?\d+\}?\{?\d+\}?|-?\d+/\d+",
    "list, tuple, interval, set or matrix": r".*(?:,|\\cup|\\in\b|matrix|[<>]|\\[lg]e).*",
    "words or choice": r".*\\text.*|[A-Za-z() ]{2,}",
    "formula": r"(?s).*",
}
"""Kind of gold answer -> what it looks like; the first one that fits."""

Pairs = Sequence[tuple[str, str]]
Counts = Mapping[str, Sequence[int]]
"""Form -> (errors, rows that can be in error)."""


# The graders, each in a process of its own.


def blind(suite: str) -> list[dict[str, Any]]:
    """The rows of a suite; never printed."""
    with gzip.open(BLIND / f"{suite}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def verdicts(grader: str, pairs: Pairs) -> list[bool | None]:
    """The verdicts of a grader."""
    if grader == "rlobj":
        with MathVerifier(deadline=10, workers=2) as verifier:
            return [verdict.correct for verdict in verifier.verify_many(pairs)]
    golds = [f"${gold}$" if grader == DOLLARS and "$" not in gold else gold for _, gold in pairs]
    asked = [(response, gold) for (response, _), gold in zip(pairs, golds, strict=True)]
    return graders.verdicts("trl" if grader == DOLLARS else grader, asked)


def speed(grader: str, part: str, seed: int) -> float:
    """Answers per CPU second of a grader."""
    pairs = responses(part, seed)
    if grader != "rlobj":
        judge = graders.Grader(grader)
        judge.answer(*pairs[0])
        begin = time.process_time()
        for pair in pairs:
            judge.answer(*pair)
        return len(pairs) / (time.process_time() - begin)
    with MathVerifier(deadline=10) as verifier:
        verifier.verify(r"\boxed{\int_0^1 2x\,dx}", "1")  # math-verify is loaded from here on

        def seconds() -> float:
            total = time.process_time()
            for process in verifier.process_ids:
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            return total

        begin = seconds()
        verifier.verify_many(pairs)
        return len(pairs) / (seconds() - begin)


def responses(part: str, seed: int) -> list[tuple[str, str]]:
    """Responses with their golds, half of them wrong."""
    chooser = random.Random(seed)
    if part == "integers":
        golds = chooser.sample(range(10**6), SPEED[part])
        return [(f"So it is \\boxed{{{gold + n % 2}}}.", str(gold)) for n, gold in enumerate(golds)]
    files = sorted((ROOT / "tests" / "answers" / "verifier_cases").glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.open(encoding="utf-8")]
    known = sorted({row["gold"] for row in rows if row["gold"].count("$") != 1})
    text, pairs = FILLER * (10_000 // len(FILLER)), []
    for n in range(SPEED[part]):
        gold, other = chooser.sample(known, 2)
        said = (other if n % 2 else gold).replace("$", "")
        pairs.append((f"{text}Thus $\\boxed{{{said}}}$.", gold))
    return pairs


def answer(grader: str, suites: Sequence[str] = (), seed: int = 0) -> dict[str, Any]:
    """One grader: its verdicts on suites as letters, or without suites its speed by part."""
    if not suites:
        return {part: speed(grader, part, seed) for part in SPEED}
    pairs = [(row["response"], row["gold"]) for suite in suites for row in blind(suite)]
    letters = iter([LETTERS[verdict] for verdict in verdicts(grader, pairs)])
    return {suite: "".join(next(letters) for _ in blind(suite)) for suite in suites}


def installed(grader: str) -> tuple[str, str] | None:
    """The Python that has a grader, and the versions there; None if it is not installed."""
    package = grader.partition(",")[0]
    if grader == "rlobj":
        return sys.executable, verifier_version()
    python = str(VERL) if grader == "verl" else sys.executable
    if not Path(python).exists():
        return None
    names = dict.fromkeys([package, "math-verify"])
    code = "import sys; from importlib.metadata import version as v; "
    code += "print(*(f'{name} {v(name)}' for name in sys.argv[1:]), sep=', ')"
    found = subprocess.run([python, "-c", code, *names], capture_output=True, text=True)
    return None if found.returncode else (python, found.stdout.strip())


def asked(grader: str, again: bool) -> tuple[str, dict[str, str]] | None:
    """The versions of a grader and its verdicts by suite; those that are kept are not asked again.

    None if the grader is neither installed nor kept.
    """
    here, own = installed(grader), _kept().get(grader, {})
    hashes = {s: hashlib.sha256((BLIND / f"{s}.jsonl.gz").read_bytes()).hexdigest() for s in SUITES}
    old = [
        suite
        for suite, rows in hashes.items()
        if again
        or own.get(suite, {}).get("rows") != rows
        or (here is not None and own[suite]["versions"] != here[1])
    ]
    if old and here is None:
        return None
    for suites in [old] if grader == "rlobj" else [[suite] for suite in old]:
        note(f"{grader}: {', '.join(suites)}")
        question = {"grader": grader, "suites": suites}
        [found] = ask("benchmarks.verifier", question, python=here[0] if here else "")
        for suite, letters in found.items():
            versions = here[1] if here else ""
            own[suite] = {"rows": hashes[suite], "versions": versions, "verdicts": letters}
        if grader != "rlobj":
            text = json.dumps({**_kept(), grader: own}, indent=1)
            KEPT.write_text(text + "\n", encoding="utf-8")
    return own[SUITES[0]]["versions"], {suite: own[suite]["verdicts"] for suite in SUITES}


def _kept() -> dict[str, Any]:
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}


# What the verdicts say.


def by_forms(counts: Counts, seed: int = 0) -> list[float] | None:
    """The interval of a share at 95%, from drawing forms with replacement; None without errors."""
    import numpy

    errors, rows = numpy.array([each for each in counts.values() if each[1]]).T
    if not errors.any():
        return None
    drawn = numpy.random.default_rng(seed).integers(len(rows), size=(DRAWS, len(rows)))
    shares = errors[drawn].sum(1) / rows[drawn].sum(1)
    return [float(bound) for bound in numpy.quantile(shares, [0.025, 0.975])]


def errors_of(kind: str, rows: Sequence[Mapping[str, Any]], found: str) -> dict[str, Any]:
    """Errors of a kind, "false positives" or "false negatives", with their intervals."""
    right = kind == "false negatives"
    judged = [
        (row, (verdict == "r") != right)
        for row, verdict in zip(rows, found, strict=True)
        if row["correct"] == right and not row.get("policy")
    ]
    forms: dict[str, list[int]] = {}
    golds: dict[str, list[int]] = {}
    for row, wrong in judged:
        gold = row["gold"].strip(" $")
        shape = next(name for name, look in KINDS.items() if re.fullmatch(look, gold))
        for name, group in ((row["kind"], forms), (shape, golds)):
            count = group.setdefault(name, [0, 0])
            count[0] += wrong
            count[1] += 1
    errors, possible = sum(wrong for _, wrong in judged), len(judged)
    text, drawn = f"{errors:,} of {possible:,}", by_forms(forms)
    bounds = wilson(errors, possible) if possible else None
    if bounds is not None:
        text += f", {errors / possible:.1%} ({_percent(bounds)}; {_percent(drawn)})"
    return {
        kind: text,
        f"{kind} counted": [errors, possible],
        f"{kind} interval": bounds,
        f"{kind} interval by forms": drawn,
        f"{kind} by form": {name: each for name, each in sorted(forms.items()) if each[0]},
        f"{kind} by gold": golds,
    }


def _percent(bounds: Sequence[float] | None) -> str:
    return "–" if bounds is None else "–".join(f"{100 * each:.1f}" for each in bounds)


def measured(
    suite: str, rows: Sequence[Mapping[str, Any]], found: str, ours: str
) -> dict[str, Any]:
    """The numbers of a grader on the rows of a suite, beside the verdicts of rlobj."""
    clear = [index for index, row in enumerate(rows) if not row.get("policy")]
    differ = [index for index in clear if (found[index] == "r") != (ours[index] == "r")]
    disputable = [
        (found[index] == "r") == row["correct"]
        for index, row in enumerate(rows)
        if row.get("policy")
    ]
    agree = sum((ours[index] == "r") == rows[index]["correct"] for index in differ)
    return {
        "suite": suite,
        "rows": len(clear),
        **errors_of("false positives", rows, found),
        **errors_of("false negatives", rows, found),
        "undecided": sum(found[index] == "-" for index in clear),
        "differs": len(differ),
        "rlobj right": agree,
        "disputable": f"{sum(disputable):,} of {len(disputable):,}",
        "forms": len(Counter(row["kind"] for row in rows)),
    }


def measure(quick: bool, rounds: int) -> Table:
    """Every grader that is installed."""
    rows = {suite: blind(suite) for suite in SUITES}
    rows["all"] = [row for suite in SUITES for row in rows[suite]]
    table, settings, ours = [], {}, {}
    for grader in GRADERS:
        found = asked(grader, not quick)
        if found is None:
            note(f"{grader}: not installed")
            continue
        versions, letters = found
        if grader != DOLLARS:
            settings["verifier" if grader == "rlobj" else grader] = versions
        letters["all"] = "".join(letters.values())
        ours = ours or letters
        for suite in rows:
            numbers = measured(suite, rows[suite], letters[suite], ours[suite])
            table.append({"grader": grader, **numbers})
        here = installed(grader)
        if here is not None and grader != DOLLARS:
            note(f"{grader}: speed")
            questions = [{"grader": grader, "seed": seed} for seed in range(rounds)]
            speeds = [ask("benchmarks.verifier", each, python=here[0])[0] for each in questions]
            table[-1] |= {part: median(each[part] for each in speeds) for part in SPEED}
    columns = {
        "suite": ("suite", ""),
        "grader": ("grader", ""),
        "rows": ("rows", ",d"),
        "false positives": ("false positives (Wilson; by forms)", ""),
        "false negatives": ("false negatives (Wilson; by forms)", ""),
        "undecided": ("undecided", ",d"),
        "differs": ("differs", ",d"),
        "rlobj right": ("rlobj right", ",d"),
        "disputable": ("disputable", ""),
        "integers": ("integers per CPU s", ",.0f"),
        "mixed": ("mixed per CPU s", ",.0f"),
    }
    table.sort(key=lambda row: list(rows).index(row["suite"]))
    parts = tuple(SPEED)
    return Table("verifier", columns, table, settings, ("grader",), parts)


if __name__ == "__main__":
    main(measure, answer)
