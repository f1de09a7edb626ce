"""The embedded default over seeds: held-out sampled accuracy before and after, and the time.

Runs `rlobj train` as a user does, first use included (an empty cache folder of its own).

    python benchmarks/learning.py [--preset stapo] [--seeds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(preset: str, seed: int, folder: Path) -> dict[str, float]:
    """One run in its own process with its own cache; its first and last evaluation."""
    out = folder / f"{preset}-{seed}"
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / f"cache-{seed}")}
    command = [sys.executable, "-m", "rlobj_cli", "train", "--preset", preset]
    start = time.perf_counter()
    subprocess.run(
        [*command, "--seed", str(seed), "--out", str(out)],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - start
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line["eval/accuracy"] for line in lines if "eval/accuracy" in line]
    steps = [line for line in lines if "time/step" in line]
    planning = sum(line.get("time/planning", 0.0) for line in steps)
    return {
        "before": evaluated[0],
        "after": evaluated[-1],
        "entropy": steps[-1]["policy/entropy"],
        "seconds": seconds,
        "planning_share": planning / sum(line["time/step"] for line in steps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", action="append", help="repeatable; default: stapo")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    rows = []
    print(f"{'preset':22} seed  before   after   gain  seconds  plan share of a step")
    with tempfile.TemporaryDirectory() as folder:
        for preset in arguments.preset or ["stapo"]:
            for seed in range(arguments.seeds):
                row = run(preset, seed, Path(folder))
                rows.append({"preset": preset, "seed": seed, **row})
                gain = 100 * (row["after"] - row["before"])
                print(
                    f"{preset:22} {seed:4d} {row['before']:7.3f} {row['after']:7.3f} {gain:+6.1f} "
                    f"{row['seconds']:8.1f} {row['planning_share']:21.1%}",
                    flush=True,
                )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
