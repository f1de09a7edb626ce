"""Measure what spurious tokens do, with tokens planted at known places.

It writes mechanism.json, mechanism.md and two pictures. All parts take about 6 minutes on one core:

    carried     the share of the gradient that planted tokens carry       50 s
    bounds      STAPO's bounds of a token's gradient                       6 s
    sources     planted tokens beside those that the policy samples       15 s
    rules       precision and recall of the objectives' rules             10 s
    thresholds  precision and recall of STAPO's rule by its thresholds     6 s
    update      what one update does to planted tokens                    77 s
    quadrants   STARE's quadrants: the change of entropy                  36 s
    growth      short runs with planted tokens                           170 s
"""

from __future__ import annotations

import json
import sys
import time

import torch

from benchmarks.harness import ROOT, machine, note, parser
from benchmarks.stability.mechanism import pages
from benchmarks.stability.mechanism.parts import PARTS


def main() -> None:
    made = parser(__doc__, "folder of the results; default: benchmarks/results")
    made.set_defaults(out=ROOT / "benchmarks" / "results")
    kept = "measure only these, with commas; the others are those of DIR/mechanism.json"
    made.add_argument("--parts", metavar="PART,...", help=kept)
    options = made.parse_args()
    file = options.out / "mechanism.json"
    asked = options.parts.split(",") if options.parts is not None else list(PARTS)
    if unknown := [name for name in asked if name not in PARTS]:
        names = ", ".join(repr(name) for name in unknown)
        made.error(f"--parts has {names}; expected some of {','.join(PARTS)}")
    torch.set_num_threads(1)
    keep = options.parts is not None and file.exists()
    found = json.loads(file.read_text(encoding="utf-8")) if keep else {}
    options.out.mkdir(parents=True, exist_ok=True)
    for name in asked:
        start = time.process_time()
        rows = PARTS[name]()
        seconds = round(time.process_time() - start, 1)
        note(f"{name}: {seconds} CPU seconds")
        found[name] = {"rows": rows, "cpu_seconds": seconds, "machine": machine()}
        found["command"] = "python " + " ".join(sys.orig_argv[1:3])
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if all(name in found for name in PARTS):
        pages.write(found, options.out)


if __name__ == "__main__":
    main()
