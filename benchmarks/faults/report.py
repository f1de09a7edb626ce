"""The table of faults, before and after, and the long runs in sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import Table, machine

READING = (
    "Program: how the program that was hit ended. Lost: steps that were trained again after the "
    "fault, or all of them if the run could not be resumed. Final weights: those of the newest "
    "checkpoint at the end, beside those of a run that nothing happened to. What the programs said "
    "is in faults.json."
)
COLUMNS = {"program": "program", "lost": "lost", "final": "final weights"}
ENDS = {-9: "killed", 0: "ended well", 1: "stopped", 2: "refused", 130: "interrupted"}
"""Words for exit codes."""


def table(before: Mapping[str, Any], after: Mapping[str, Any]) -> Table:
    """One row per fault."""
    sides = {"before": before, "after": after} if before else {"after": after}
    columns = {"fault": ("fault", "")}
    for side in sides:
        columns |= {f"{side} {key}": (f"{side}: {title}", "") for key, title in COLUMNS.items()}
    rows = []
    for name in {**after, **before}:
        row: dict[str, Any] = {"fault": name}
        for side, found in sides.items():
            if "exit" in found.get(name, {}):
                row |= {f"{side} {key}": text for key, text in _cells(found[name]).items()}
        if len(row) > 1:
            rows.append(row)
    versions = {
        f"rlobj {side}": " ".join(sorted({str(each.get("version")) for each in found.values()}))
        for side, found in sides.items()
    }
    return Table("faults", READING, columns, rows, versions)


def _cells(outcome: Mapping[str, Any]) -> dict[str, str]:
    ended = ENDS.get(outcome["exit"], "ran on")
    if failed := re.match(r"exit (\d+)", outcome["resumed"]):
        ended += f"; {ENDS[int(failed[1])]} when it was resumed"
    lost = "–" if outcome["lost"] is None else str(outcome["lost"])
    return {"program": ended, "lost": lost, "final": outcome["final"]}


def markdown(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The table, then the long runs."""
    lines = [table(before, after).markdown()]
    for name, found in after.items():
        if "exit" not in found:
            shown = {key: value for key, value in found.items() if key not in ("looks", "events")}
            lines.append(f"- {name}: {json.dumps(shown)}")
    return "\n".join(lines) + "\n"


def write(folder: Path, before: Mapping[str, Any], after: Mapping[str, Any], text: str) -> None:
    """Write faults.md and faults.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "faults.md").write_text(text, encoding="utf-8")
    found = {"before": before, "after": after, "machine": machine()}
    (folder / "faults.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
