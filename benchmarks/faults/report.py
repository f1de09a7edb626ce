"""The table of faults, before and after, and the long runs in sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import Table, machine

READING = """Lost: steps that were trained again after the fault, or all of them if the run could
not be resumed. Final weights: those of the newest checkpoint at the end, beside those of a run that
nothing happened to. Said: the program's words at the fault, or when the run was resumed."""
SAID = 160
"""Characters of a message in the table."""


def table(before: Mapping[str, Any], after: Mapping[str, Any]) -> Table:
    """One row per fault."""
    sides = {"before": before, "after": after} if before else {"after": after}
    titles = {"lost": "lost", "final": "final weights", "said": "said"}
    columns = {"fault": ("fault", "")}
    for side in sides:
        prefix = f"{side}: " if len(sides) > 1 else ""
        columns |= {f"{side} {key}": (prefix + title, "") for key, title in titles.items()}
    rows = []
    for name in [*after, *(name for name in before if name not in after)]:
        row: dict[str, Any] = {"fault": name}
        for side, found in sides.items():
            if "final" in found.get(name, {}) and "exit" in found[name]:
                row |= {f"{side} {key}": text for key, text in _cells(found[name]).items()}
        if len(row) > 1:
            rows.append(row)
    versions = {
        f"rlobj {side}": " ".join(sorted({str(each.get("version")) for each in found.values()}))
        for side, found in sides.items()
    }
    return Table("faults", READING.replace("\n", " "), columns, rows, versions)


def _cells(outcome: Mapping[str, Any]) -> dict[str, str]:
    said = outcome["resumed"] or outcome["message"]
    said = " ".join(said.replace("|", "/").split())
    lost = "–" if outcome["lost"] is None else str(outcome["lost"])
    shown = said if len(said) <= SAID else said[:SAID] + "…"
    return {"lost": lost, "final": outcome["final"], "said": shown}


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
