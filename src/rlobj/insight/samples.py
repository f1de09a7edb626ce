"""The responses around recorded tokens, from RUN/samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset as ds


def in_responses(run: Path, tokens: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Recorded tokens with all text `before` and `after` them, where │ follows the prompt.

    A token stays as it is if the sample table of its step is missing or damaged, or if the text of
    its response does not have the recorded context.

    Args:
        run: the run's folder.
        tokens: rows of the record with step, response, before, text and after.
    """
    return [{**token, **_place(token, _sample(run, token))} for token in tokens]


def _sample(run: Path, token: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The row of a token's response in the sample table of its step."""
    file = run / "samples" / f"step-{token['step']:06d}.parquet"
    chosen = ds.field("id") == token["response"]
    try:
        rows = ds.dataset(file).to_table(columns=["prompt", "response"], filter=chosen).to_pylist()
    except (pyarrow.ArrowException, OSError):  # not there, or damaged
        return None
    return rows[0] if rows else None


def _place(token: Mapping[str, Any], sample: Mapping[str, Any] | None) -> dict[str, Any]:
    """The token's place in the text of its response."""
    if sample is None:
        return {}
    before, end = token["before"], token["text"] + token["after"]
    response = sample["response"]
    for at in range(len(response) + 1):
        start, rest = response[max(at - len(before), 0) : at], response[at : at + len(end)]
        # the context may begin in the prompt, and end with special tokens, which the text lacks
        if before.endswith(start) and end.startswith(rest):
            after = response[at + len(token["text"]) :]
            return {"before": f"{sample['prompt']}│{response[:at]}", "after": after}
    return {}
