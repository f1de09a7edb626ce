"""Recorded tokens in the whole text of their responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow

from rlobj.base.arrow import pc
from rlobj.base.files import parse_json
from rlobj.runs.layout import sample_table
from rlobj.runs.samples import read_samples


def in_responses(run: Path, tokens: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Recorded tokens with all text `before` and `after` them, where │ follows the prompt.

    In a conversation, │ is between what the policy wrote and what it read.

    A token stays as it is if the sample table of its step is missing or damaged, or if the text of
    its response does not have the recorded context.

    Args:
        run: the run's folder.
        tokens: rows of the record with step, response, before, text and after.
    """
    return [{**token, **_place(token, _sample(run, token))} for token in tokens]


def _sample(run: Path, token: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The row of a token's response in the sample table of its step."""
    file = sample_table(run, token["step"])
    chosen = pc.field("id") == token["response"]
    try:
        rows = read_samples(file, ("prompt", "response", "conversation"), chosen).to_pylist()
        return _in_turn(rows[0], token.get("turn") or 0) if rows else None
    except (pyarrow.ArrowException, OSError, ValueError, LookupError, TypeError):
        return None  # not there, or damaged


def _in_turn(row: Mapping[str, Any], turn: int) -> Mapping[str, Any]:
    """The row as if a turn of its conversation were the response, and the text that follows it."""
    turns = parse_json(row.get("conversation") or "[]")
    if not turns:
        return row
    said = [str(part) for message in turns for part in (message["text"], message["observation"])]
    rest = "".join(f"│{text}" for text in said[2 * turn + 1 :] if text)
    prompt = "│".join([row["prompt"], *said[: 2 * turn]])
    return {"prompt": prompt, "response": said[2 * turn], "rest": rest}


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
            after = response[at + len(token["text"]) :] + sample.get("rest", "")
            return {"before": f"{sample['prompt']}│{response[:at]}", "after": after}
    return {}
