"""The verifier beside math-verify, verl's scorer and TRL's reward: speed and errors.

Speed is process CPU time at one thread, worker processes included, each repetition in a process of
its own with responses of its own; the median of three is shown. `integers` are short responses
with distinct golds; `mixed` are responses of 10,000 characters with golds of every kind. Half of
the answers are wrong. Errors are counted on the rows of
tests/answers/verifier_cases on which fair judges agree.

math-verify is called as its documentation and its traps ask: both sides in a box, gold first.
verl's scorer is timed without its pool of processes, which favours it. A grader that is not
installed is left out.

    pip install --no-deps -r benchmarks/verifier-requirements.txt
    python benchmarks/verifier.py [--out benchmarks/results/verifier.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CASES = Path(__file__).parents[1] / "tests" / "answers" / "verifier_cases"
FILLER = (
    "We consider the function $f(x)=x^2+1$ and note that {it is} even (see above), so 3 < 4 and "
    "[1,2] holds. Therefore the sum is 12.\n"
)
ROWS = {"integers": 2000, "mixed": 600}
REPEATS = 3

Pairs = Sequence[tuple[str, str]]
Grade = Callable[[Pairs], list[bool | None]]


def rlobj_grader() -> tuple[Grade, Callable[[], float]]:
    """Ours, with one worker; the CPU seconds include the worker."""
    from rlobj.rewards import MathVerifier

    verifier = MathVerifier(deadline=10).__enter__()
    verifier.verify(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")

    def seconds() -> float:
        total = time.process_time()
        for process in verifier.process_ids:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    return lambda pairs: [verdict.correct for verdict in verifier.verify_many(pairs)], seconds


def math_verify_grader() -> tuple[Grade, Callable[[], float]]:
    """math-verify alone, called with care."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    latex = LatexExtractionConfig(boxed_match_priority=0)

    def grade(pairs: Pairs) -> list[bool | None]:
        return [
            bool(
                verify(
                    parse(f"\\boxed{{{gold}}}", [latex]),
                    parse(response, [latex, ExprExtractionConfig()]),
                )
            )
            for response, gold in pairs
        ]

    return grade, time.process_time


def verl_grader() -> tuple[Grade, Callable[[], float]]:
    """verl's math_verify scorer, the work of one of its processes."""
    from verl.utils.reward_score.math_verify import _verify_in_subprocess

    def grade(pairs: Pairs) -> list[bool | None]:
        return [_verify_in_subprocess(f"\\boxed{{{g}}}", response) == 1.0 for response, g in pairs]

    return grade, time.process_time


def trl_grader() -> tuple[Grade, Callable[[], float]]:
    """TRL's accuracy_reward; None where it skips the example."""
    from trl.rewards import accuracy_reward

    def grade(pairs: Pairs) -> list[bool | None]:
        completions = [[{"role": "assistant", "content": response}] for response, _ in pairs]
        rewards = accuracy_reward(completions, [gold for _, gold in pairs])
        return [None if reward is None else reward == 1.0 for reward in rewards]

    return grade, time.process_time


GRADERS = {
    "rlobj": rlobj_grader,
    "math-verify": math_verify_grader,
    "verl": verl_grader,
    "trl": trl_grader,
}


def cases() -> list[dict[str, str]]:
    """The rows of the suite on which fair judges agree."""
    rows = [
        json.loads(line)
        for path in sorted(CASES.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return [row for row in rows if not row.get("policy")]


def responses(part: str, seed: int) -> list[tuple[str, str]]:
    """Responses with their golds, half of them wrong."""
    chooser = random.Random(seed)
    if part == "integers":
        golds = chooser.sample(range(10**6), ROWS[part])
        return [(f"So it is \\boxed{{{gold + n % 2}}}.", str(gold)) for n, gold in enumerate(golds)]
    known = sorted({row["gold"] for row in cases() if row["gold"].count("$") != 1})
    text = FILLER * (10_000 // len(FILLER))
    pairs = []
    for n in range(ROWS[part]):
        gold, other = chooser.sample(known, 2)
        answer = other if n % 2 else gold
        pairs.append((f"{text}Thus $\\boxed{{{answer.replace('$', '')}}}$.", gold))
    return pairs


def measure(grader: str, part: str, seed: int) -> dict[str, float]:
    """One grader on one part, in this fresh process."""
    grade, seconds = GRADERS[grader]()
    if part == "errors":
        rows = cases()
        verdicts = grade([(row["response"], row["gold"]) for row in rows])
        judged = list(zip(rows, verdicts, strict=True))
        return {
            "rows": len(rows),
            "false positives": sum(v is True and not row["correct"] for row, v in judged),
            "false negatives": sum(v is False and bool(row["correct"]) for row, v in judged),
            "undecided": sum(v is None for _, v in judged),
        }
    pairs = responses(part, seed)
    grade(pairs[:5])
    start = seconds()
    grade(pairs[5:])
    return {"answers per CPU second": (len(pairs) - 5) / (seconds() - start)}


def run(grader: str, part: str, seed: int = 0) -> dict[str, float] | None:
    """`measure` in a process of its own; None if the grader is not installed."""
    command = [sys.executable, __file__, "--one", grader, part, str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(f"{grader}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def versions() -> dict[str, str]:
    """Versions of what was compared."""
    found = {"python": platform.python_version()}
    for package in ("rlobj", "math-verify", "latex2sympy2_extended", "sympy", "verl", "trl"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="also write the numbers to this file")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        grader, part, seed = arguments.one
        print(json.dumps(measure(grader, part, int(seed))))
        return
    results = {}
    for grader in GRADERS:
        row = run(grader, "errors")
        if row is None:
            continue
        for part in ROWS:
            runs = [run(grader, part, seed) for seed in range(REPEATS)]
            speeds = sorted(each["answers per CPU second"] for each in runs if each is not None)
            row[f"{part} per CPU second"] = round(speeds[len(speeds) // 2], 1)
        results[grader] = row
        print(f"{grader:12}", "  ".join(f"{name}: {value}" for name, value in row.items()))
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump({"versions": versions(), "graders": results}, file, indent=1)


if __name__ == "__main__":
    main()
