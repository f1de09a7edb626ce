"""What is lost when something breaks? Faults are done to real processes of rlobj.

    python -m benchmarks.faults --runs DIR [--full] [--only TEXT] [--before FILE] [--out DIR]

Each fault hits a tiny run. The run is then resumed, and its final weights are compared with those
of a run that nothing happened to. What was measured stays in DIR/outcomes.json and is not measured
again, unless --only names a part of it. --full adds 20 kills at random moments, the memory of a
server over 500 syncs, and a run of 2,000 steps with many faults. --before FILE shows the
outcomes.json of another version beside this one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults import endurance, report, servers, trainers
from benchmarks.faults.outcome import Outcome, Place
from benchmarks.faults.programs import save_policy
from benchmarks.harness import commit, note

LONG: dict[str, Callable[[Place], dict[str, Any]]] = {
    "20 kills": partial(trainers.kills, count=20),
    "night": partial(endurance.night, steps=2000, kills=5),
}
"""What --full adds."""


def main() -> None:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    faults: dict[str, Callable[[Place], Any]] = {**trainers.FAULTS, **servers.FAULTS}
    if options.full:
        faults |= LONG
    file = options.runs / "outcomes.json"
    place = Place(options.runs, save_policy(options.runs / "policy"))
    try:
        for name, fault in faults.items():
            asked = [text in name for text in (options.only or "").split(",")]
            if not any(asked) or (options.only is None and name in _found(file)):
                continue
            outcome = _measured(place, name, fault)
            found = json.dumps(_found(file) | {name: outcome}, indent=1) + "\n"
            file.write_text(found.replace(str(options.runs), "RUNS"))
            note(f"{name}: {json.dumps(outcome)}")
    finally:
        servers.stop_all()
    before = json.loads(options.before.read_text()) if options.before else {}
    text = report.markdown(before, _found(file))
    print(text)
    if options.out:
        report.write(options.out, before, _found(file), text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=Path, required=True, metavar="DIR", help="of the runs")
    parser.add_argument("--full", action="store_true", help="measure the long ones, too")
    parser.add_argument("--only", help="parts of names, with commas: measure these again")
    parser.add_argument("--before", type=Path, help="outcomes.json of another version")
    parser.add_argument("--out", type=Path, help="folder for faults.json and faults.md")
    return parser


def _found(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def _measured(place: Place, name: str, fault: Callable[[Place], Any]) -> dict[str, Any]:
    """Do the fault in a new folder; a fault that cannot be done is reported as such."""
    began = time.monotonic()
    place.name = "".join(c if c.isalnum() else "-" for c in name)
    shutil.rmtree(place.folder / place.name, ignore_errors=True)
    try:
        outcome = fault(place)
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(final=f"not measured: {error}"[:300])
    facts = asdict(outcome) if isinstance(outcome, Outcome) else outcome
    return {**facts, "version": commit(), "took": round(time.monotonic() - began, 1)}


if __name__ == "__main__":
    main()
