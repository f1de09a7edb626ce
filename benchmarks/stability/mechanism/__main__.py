"""The command of the measurements with planted tokens.

python -m benchmarks.stability.mechanism [--out benchmarks/results] [--parts carried,bounds]

It writes mechanism.json, mechanism.md and two pictures. With --parts, the other parts are those of
the mechanism.json that is there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.harness import machine, note
from benchmarks.stability.mechanism import pages
from benchmarks.stability.mechanism.parts import PARTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--parts", help=f"some of {','.join(PARTS)}, with commas; default: all")
    options = parser.parse_args()
    asked = options.parts.split(",") if options.parts else list(PARTS)
    if unknown := [name for name in asked if name not in PARTS]:
        parser.error(f"--parts has {', '.join(unknown)}; expected some of {','.join(PARTS)}")
    torch.set_num_threads(1)
    file = options.out / "mechanism.json"
    found = json.loads(file.read_text(encoding="utf-8")) if options.parts and file.exists() else {}
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
