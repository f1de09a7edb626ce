"""CPU seconds and memory of `import rlobj` and of quick commands, beside a bare `import torch`.

Whole processes; medians over runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median

from benchmarks.harness import Table, main, note

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import rlobj": ["-c", "import rlobj"],
    "rlobj.Objective()": ["-c", "import rlobj; rlobj.Objective()"],
    "rlobj --help": ["-m", "rlobj_cli", "--help"],
    "rlobj presets list": ["-m", "rlobj_cli", "presets", "list"],
    "rlobj presets show stapo": ["-m", "rlobj_cli", "presets", "show", "stapo"],
}


def cost(command: list[str]) -> tuple[float, float]:
    """CPU seconds (user and system) and largest resident MiB of one process."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure(quick: bool, rounds: int) -> Table:
    """Every command, after one run that fills the file cache."""
    rows = []
    for name, command in COMMANDS.items():
        note(name)
        costs = [cost(command) for _ in range(1 + max(rounds, 3 if quick else 7))][1:]
        seconds, mib = (median(values) for values in zip(*costs, strict=True))
        rows.append({"command": name, "seconds": seconds, "mib": mib})
    for row in rows:
        row["ratio"] = row["seconds"] / rows[0]["seconds"]
    columns = {
        "command": ("command", ""),
        "seconds": ("CPU s", ".2f"),
        "ratio": ("over import torch", ".2f"),
        "mib": ("MiB", ",.0f"),
    }
    return Table("import-cost", columns, rows, {}, ("command",), ("seconds", "mib"))


if __name__ == "__main__":
    main(measure)
