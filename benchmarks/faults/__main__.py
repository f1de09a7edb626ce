"""What is lost when something breaks? Faults are done to real processes of rlobj.

    python -m benchmarks.faults --runs DIR [--full] [--only TEXT] [--before FILE] [--out DIR]

Each fault hits a tiny run. The run is then resumed, and its final weights are compared with those
of a run that nothing happened to. What was measured stays in DIR/outcomes.json and is not measured
again, unless --only names a part of it. --full adds 20 kills at random moments. --before FILE shows
the outcomes.json of another version beside this one.

Program: how the program that was hit ended. Lost: steps that were trained again after the fault, or
all of them if the run could not be resumed. Final weights: those of the newest checkpoint at the
end, beside those of a run that nothing happened to. What the programs said is in faults.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults import kinds
from benchmarks.faults.programs import KEY, Fault, Outcome, Place, save_policy
from benchmarks.harness import Table, commit, note, parser, write

LONG: dict[str, Fault] = {"20 kills": partial(kinds.kills, count=20)}
"""What --full adds."""
CELLS = ("program", "lost", "final weights")
ENDS = {-9: "killed", 0: "ended well", 1: "stopped", 2: "refused", 130: "interrupted"}
"""Words for exit codes."""
Found = Mapping[str, Mapping[str, Any]]
"""What was measured, by fault."""


def main() -> None:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.pop(KEY, None)
    faults = kinds.FAULTS | (LONG if options.full else {})
    file, policy = options.runs / "outcomes.json", options.runs / "policy"
    if not policy.exists():
        save_policy(policy)
    try:
        for name, fault in faults.items():
            asked = [text in name for text in (options.only or "").split(",")]
            if not any(asked) or (options.only is None and name in _found(file)):
                continue
            folder = "".join(c if c.isalnum() else "-" for c in name)
            outcome = _measured(Place(options.runs, policy, folder), fault)
            found = json.dumps(_found(file) | {name: outcome}, indent=1) + "\n"
            file.write_text(found.replace(str(options.runs), "RUNS"))
            note(f"{name}: {json.dumps(outcome)}")
    finally:
        kinds.stop_all()
    table = _table(_found(options.before) if options.before else {}, _found(file))
    print(table.markdown())
    if options.out:
        write(table, options.out)


def _parser() -> argparse.ArgumentParser:
    made = parser(__doc__, "folder for faults.json and faults.md", runs=True)
    made.prog = "python -m benchmarks.faults"
    made.add_argument("--full", action="store_true", help="measure the long ones, too")
    made.add_argument("--only", help="parts of names, with commas: measure these again")
    made.add_argument("--before", type=Path, help="outcomes.json of another version")
    return made


def _found(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def _measured(place: Place, fault: Fault) -> dict[str, Any]:
    """Do the fault in a new folder; a fault that cannot be done is reported as such."""
    began = time.monotonic()
    shutil.rmtree(place.folder / place.name, ignore_errors=True)
    try:
        outcome = fault(place)
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(final=f"not measured: {error}"[:300])
    took = round(time.monotonic() - began, 1)
    return {**asdict(outcome), "version": commit(), "took": took}


def _table(before: Found, after: Found) -> Table:
    """A row for each fault; the JSON file also has what the programs said."""
    sides = {"before": before, "after": after} if before else {"after": after}
    columns, rows, versions = {"fault": ("fault", "")}, {}, {}
    for side, found in sides.items():
        columns |= {f"{side} {title}": (f"{side}: {title}", "") for title in CELLS}
        versions[f"rlobj {side}"] = " ".join(sorted({each["version"] for each in found.values()}))
        for name, outcome in found.items():
            row = rows.setdefault(name, {"fault": name})
            cells = zip(CELLS, _cells(outcome), strict=True)
            row |= {side: outcome, **{f"{side} {title}": text for title, text in cells}}
    return Table("faults", columns, list(rows.values()), versions, reading=str(__doc__))


def _cells(outcome: Mapping[str, Any]) -> tuple[str, str, str]:
    ended = ENDS.get(outcome["exit"], "ran on")
    if failed := re.match(r"exit (\d+)", outcome["resumed"]):
        ended += f"; {ENDS[int(failed[1])]} when it was resumed"
    lost = "–" if outcome["lost"] is None else str(outcome["lost"])
    return ended, lost, outcome["final"]


if __name__ == "__main__":
    main()
