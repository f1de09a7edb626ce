"""The verifier on rows that nobody has mended it on; see blind/README.md.

Mistakes are counted by form; no row is printed, so that the rows stay blind.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "blind"
HASHES = {
    "pairs": "f879c0e85611d9a7ccc9579e7c127add9753d476780de4b2e8a2b75f78faafad",
    "outputs": "8c7bb36ab79754b96e98adc9b7a954a24304e0c4a94426e99847102d8a581841",
    "attacks": "5873ed92a66e887de3462dc72c2db3d25ae892586f5364a8523e7834498ef31a",
    "exam": "dd8a6cf5677b8f4d91b37b3f0a90a0661e56fb7bedaf61050781778d841d4e35",
}
ALLOWED = {"pairs": (0, 1), "outputs": (0, 4), "attacks": (23, 0), "exam": (4, 4)}
"""Suite -> false positives and false negatives."""


def blind(suite: str) -> list[dict[str, Any]]:
    with gzip.open(FOLDER / f"{suite}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("suite", HASHES)
def test_the_blind_rows_are_those_that_were_frozen(suite):
    content = (FOLDER / f"{suite}.jsonl.gz").read_bytes()
    assert hashlib.sha256(content).hexdigest() == HASHES[suite]


@pytest.mark.parametrize("suite", sorted(HASHES.keys() - {"exam"}))
def test_no_form_of_the_blind_half_is_in_the_open_half(suite):
    path = FOLDER.parent / "verifier_cases" / f"open_{suite}.jsonl"
    kinds = {json.loads(line)["kind"] for line in path.read_text(encoding="utf-8").splitlines()}
    assert not kinds & {row["kind"] for row in blind(suite)}


@pytest.mark.slow
@pytest.mark.parametrize("suite", HASHES)
def test_mistakes_on_the_blind_half_do_not_increase(suite, verifier):
    rows = [row for row in blind(suite) if not row.get("policy")]
    verdicts = verifier.verify_many([(row["response"], row["gold"]) for row in rows])
    passed, missed = Counter(), Counter()
    for row, verdict in zip(rows, verdicts, strict=True):
        passed[row["kind"]] += verdict.correct is True and not row["correct"]
        missed[row["kind"]] += verdict.correct is not True and row["correct"]
    counts = (passed.total(), missed.total())
    assert all(map(int.__le__, counts, ALLOWED[suite])), (
        f"{len(rows)} rows: {counts[0]} false positives {dict(+passed)}, "
        f"{counts[1]} false negatives {dict(+missed)}; allowed {ALLOWED[suite]}"
    )
