"""The verifier beside math-verify and TRL's reward: errors and speed.

Errors are counted on the rows of tests/answers/verifier_cases on which fair judges agree. Speed is
answers per CPU second at one thread, worker processes included: `integers` are short responses with
distinct golds, `mixed` are responses of 10,000 characters with golds of every kind; half of the
answers are wrong. math-verify is called with care: both sides in a box, gold first. verl's scorer
is math-verify in a pool of processes.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from benchmarks.harness import ROOT, Table, ask, main, note
from rlobj.rewards import MathVerifier

FILLER = (
    "We consider the function $f(x)=x^2+1$ and note that {it is} even (see above), so 3 < 4 and "
    "[1,2] holds. Therefore the sum is 12.\n"
)
ROWS = {"integers": 2000, "mixed": 600}

Pairs = Sequence[tuple[str, str]]
Grade = Callable[[Pairs], list[bool | None]]
Clock = Callable[[], float]


def rlobj_grader() -> tuple[Grade, Clock]:
    """Ours, with one worker, whose CPU seconds count."""
    verifier = MathVerifier(deadline=10).__enter__()
    verifier.verify(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")

    def seconds() -> float:
        total = time.process_time()
        for process in verifier.process_ids:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    return lambda pairs: [verdict.correct for verdict in verifier.verify_many(pairs)], seconds


def math_verify_grader() -> tuple[Grade, Clock]:
    """math-verify alone."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    latex = LatexExtractionConfig(boxed_match_priority=0)

    def judge(response: str, gold: str) -> bool:
        answer = parse(response, [latex, ExprExtractionConfig()])
        return bool(verify(parse(f"\\boxed{{{gold}}}", [latex]), answer))

    return lambda pairs: [judge(*pair) for pair in pairs], time.process_time


def trl_grader() -> tuple[Grade, Clock]:
    """TRL's accuracy_reward; None if it skips the example."""
    accuracy_reward = import_module("trl.rewards").accuracy_reward

    def grade(pairs: Pairs) -> list[bool | None]:
        completions = [[{"role": "assistant", "content": response}] for response, _ in pairs]
        rewards = accuracy_reward(completions, [gold for _, gold in pairs])
        return [None if reward is None else reward == 1.0 for reward in rewards]

    return grade, time.process_time


GRADERS = {"rlobj": rlobj_grader, "math-verify": math_verify_grader, "trl": trl_grader}


def cases() -> list[dict[str, str]]:
    """The rows of the suite on which fair judges agree."""
    files = sorted((ROOT / "tests" / "answers" / "verifier_cases").glob("*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [row for row in map(json.loads, lines) if not row.get("policy")]


def responses(part: str, seed: int) -> list[tuple[str, str]]:
    """Responses with their golds, half of them wrong."""
    chooser = random.Random(seed)
    if part == "integers":
        golds = chooser.sample(range(10**6), ROWS[part])
        return [(f"So it is \\boxed{{{gold + n % 2}}}.", str(gold)) for n, gold in enumerate(golds)]
    known = sorted({row["gold"] for row in cases() if row["gold"].count("$") != 1})
    text, pairs = FILLER * (10_000 // len(FILLER)), []
    for n in range(ROWS[part]):
        gold, other = chooser.sample(known, 2)
        answer = (other if n % 2 else gold).replace("$", "")
        pairs.append((f"{text}Thus $\\boxed{{{answer}}}$.", gold))
    return pairs


def answer(grader: str, part: str, seed: int = 0) -> dict[str, float]:
    """One grader on one part."""
    grade, seconds = GRADERS[grader]()
    if part != "errors":
        pairs = responses(part, seed)
        grade(pairs[:5])
        start = seconds()
        grade(pairs[5:])
        return {part: (len(pairs) - 5) / (seconds() - start)}
    rows = cases()
    verdicts = grade([(row["response"], row["gold"]) for row in rows])
    judged = [(verdict, bool(row["correct"])) for row, verdict in zip(rows, verdicts, strict=True)]
    return {
        "rows": len(rows),
        "false_positives": judged.count((True, False)),
        "false_negatives": judged.count((False, True)),
        "undecided": verdicts.count(None),
    }


def measure(quick: bool, rounds: int) -> Table:
    """Every grader that is installed."""
    rows = []
    for grader in GRADERS:
        if not find_spec(grader.replace("-", "_")):
            continue
        note(grader)
        [row] = ask("benchmarks.verifier", {"grader": grader, "part": "errors"})
        for part in ROWS:
            some = [{"grader": grader, "part": part, "seed": seed} for seed in range(rounds)]
            row[part] = median(ask("benchmarks.verifier", each)[0][part] for each in some)
        rows.append({"grader": grader, **row})
    columns = {
        "grader": ("grader", ""),
        "rows": ("rows", ",d"),
        "false_positives": ("false positives", ",d"),
        "false_negatives": ("false negatives", ",d"),
        "undecided": ("undecided", ",d"),
        "integers": ("integers per CPU s", ",.0f"),
        "mixed": ("mixed per CPU s", ",.0f"),
    }
    return Table("verifier", str(__doc__), columns, rows, {}, ("grader",), ("integers", "mixed"))


if __name__ == "__main__":
    main(measure, answer)
