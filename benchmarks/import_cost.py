"""Import time and memory of `import rlobj` and `rlobj --help`, beside a bare `import torch`.

Median CPU seconds (user and system) and largest resident size of whole processes.

    python benchmarks/import_cost.py [--runs 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "import torch, pydantic": [sys.executable, "-c", "import torch, pydantic"],
    "import rlobj": [sys.executable, "-c", "import rlobj"],
    "rlobj --help": [sys.executable, "-m", "rlobj_cli", "--help"],
}


def run(command: list[str]) -> tuple[float, float]:
    """CPU seconds and MiB of one process."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    for name, command in COMMANDS.items():
        run(command)  # warm the file cache
        seconds, mib = zip(*(run(command) for _ in range(arguments.runs)), strict=True)
        rows[name] = {"seconds": statistics.median(seconds), "mib": statistics.median(mib)}
    bare = rows["import torch"]
    for name, row in rows.items():
        ratio = row["seconds"] / bare["seconds"]
        print(f"{name:24} {row['seconds']:5.2f} s CPU ({ratio:4.2f}x)  {row['mib']:5.0f} MiB")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
