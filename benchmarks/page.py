"""The page of `rlobj inspect RUN --html`: how long it takes to write, to open and to filter.

The run is made up: lognormal lengths, a vocabulary of 16,384 tokens, log-probabilities as a trained
policy has them, full tables of all steps, planned under STAPO. The page is written by the code that
`rlobj inspect` runs, and Chromium opens it without a window. Times are seconds by the clock, since
the browser works on several threads.

Filters are timed on loaded columns, with the counts of the tokens that they find.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Table, main, note, of_tests, peak_mib
from benchmarks.made_up import lognormal_lengths, made_up_update
from rlobj.insight.page.writing import write_inspection_page
from rlobj.runs.run_folder import RunFolder
from rlobj.runs.tables import write_tables
from rlobj.settings.building import compose

VOCABULARY, GROUP, LENGTH, UPDATES = 16384, 8, 250, 2
FILTERS = {
    "a range": {"range:prob": "..0.01"},
    "three ranges": {"range:advantage": "0..", "range:prob": "..0.002", "range:entropy": "..0.5"},
    "a text": {"text": "word1 word2"},
}


def make_run(run: Path, tokens: int, steps: int) -> None:
    """A run's folder with full tables of all steps and a tokenizer."""
    from tokenizers import Tokenizer, models

    RunFolder(run).create(compose("stapo"))
    each = tokens // (steps * UPDATES)
    for step in range(1, steps + 1):
        updates = []
        for update in range(1, UPDATES + 1):
            lengths = lognormal_lengths(GROUP * max(each // (GROUP * 345), 1), LENGTH, 0.8)
            found = made_up_update(100 * step + update, lengths, GROUP, VOCABULARY)
            updates.append((update, found))
        write_tables(run, step, updates, (0, 1), {})
    model = run / "checkpoints" / f"step-{steps:06d}" / "model"
    model.mkdir(parents=True, exist_ok=True)
    words = {f"▁word{i:x}" if i % 3 else f"{i:x}": i for i in range(VOCABULARY)}
    Tokenizer(models.WordLevel(words, unk_token="0")).save(str(model / "tokenizer.json"))


def measure(quick: bool, rounds: int) -> Table:
    """Write, open and filter pages of some sizes."""
    sizes = [(100_000, 5)] if quick else [(100_000, 5), (1_000_000, 10)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for tokens, steps in sizes:
            note(f"{tokens:,} tokens")
            run = Path(folder) / str(tokens)
            make_run(run, tokens, steps)
            start = time.perf_counter()
            path = write_inspection_page(run)
            written = time.perf_counter() - start
            rows.append(
                {
                    "tokens": tokens,
                    "written": written,
                    "mib": path.stat().st_size / 2**20,
                    "peak": peak_mib(),
                    **opened(path, Path(folder) / f"profile-{tokens}", rounds),
                }
            )
    columns = {
        "tokens": ("tokens", ",d"),
        "written": ("written, s", ".1f"),
        "peak": ("largest memory, MiB", ".0f"),
        "mib": ("file, MiB", ".1f"),
        "drawn": ("first drawn, s", ".2f"),
        "loaded": ("all columns, s", ".2f"),
        "heap": ("memory of the page, MiB", ".0f"),
        **{name: (f"{name}, ms", ".0f") for name in FILTERS},
    }
    return Table(
        name="page",
        columns=columns,
        rows=rows,
        settings={"updates a step": UPDATES, "median length": LENGTH} | FILTERS,
        labels=("tokens",),
        bars=("written", "drawn"),
    )


def opened(path: Path, profile: Path, rounds: int) -> dict[str, Any]:
    """Seconds until the page is drawn and loaded, its memory, and milliseconds of each filter.

    Each is the least of the rounds.
    """
    found: dict[str, list[float]] = {}
    browser = of_tests("browser").Browser(profile)
    try:
        for _ in range(rounds):
            browser.open(path)
            browser.wait("document.querySelector('#group-responses [data-row]')", 60)
            times = {"drawn": browser.run("performance.now()")}
            _timed(browser, "await store.load(store.names)")
            times["loaded"] = browser.run("performance.now()")
            browser.send("HeapProfiler.collectGarbage")
            heap = browser.send("Runtime.getHeapUsage")
            times["heap"] = heap["usedSize"] + heap["backingStorageSize"]
            for name, fields in FILTERS.items():
                empty = json.dumps(dict.fromkeys(fields, ""))
                shown = f"Object.assign(state, {json.dumps(fields)}); await applyFilter()"
                times[name] = _timed(browser, shown)
                _timed(browser, f"Object.assign(state, {empty})")
            for name, value in times.items():
                found.setdefault(name, []).append(value)
    finally:
        browser.close()
    scale = {"drawn": 1000, "loaded": 1000, "heap": 2**20}
    return {name: min(values) / scale.get(name, 1) for name, values in found.items()}


def _timed(browser: Any, script: str) -> float:
    """Milliseconds that a statement takes in the page."""
    timed = f"const start = performance.now(); {script}; return performance.now() - start;"
    expression = f"(async () => {{ {timed} }})()"
    sent = browser.send(
        "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
    )
    return sent["result"]["value"]


if __name__ == "__main__":
    main(measure)
