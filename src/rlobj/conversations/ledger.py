"""The answers of environments on disk, so that a run that was killed asks no tool twice.

One line per answer: the CRC-32 of the rest, then a JSON object. What the policy says is drawn
again: the engine gives the same tokens, and the same log-probs, for the same requests.
"""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlobj.base.files import parse_json
from rlobj.conversations.environment import ToolUse, TurnRecord

_FILES = "turns-*.jsonl"
Key = tuple[int, int]
"""The seed of a prompt, and the number of the response to it."""


class Ledger:
    """The turns of one step that were drawn before, and a file for new ones.

    Args:
        folder: of the step.
        rank: of this process.
        facts: the key of the run's settings, which is stored with each turn.
        fits: whether a turn with such facts and this weight version may be used again.
    """

    def __init__(
        self, folder: Path, rank: int, facts: str, fits: Callable[[str, int], bool]
    ) -> None:
        self._folder, self._rank, self._facts, self._fits = folder, rank, facts, fits
        self._found: dict[Key, list[dict[str, Any]]] | None = None
        self._file: Any = None

    def found(self, key: Key, version: int) -> list[dict[str, Any]]:
        """What was kept of a conversation: its opening, then the answers to its turns.

        Nothing, if the state of its environment is not known after one of them.
        """
        if self._found is None:
            self._found = {}
            for path in sorted(self._folder.glob(_FILES)):
                self._read(path)
        entries = [each for each in self._found.get(key, ()) if each["version"] == version]
        whole = [each["number"] for each in entries] == [*range(len(entries))]
        known = all(
            each["state"] is not None or each.get("turn", {}).get("end") for each in entries
        )
        return entries if whole and known else []

    def _read(self, path: Path) -> None:
        assert self._found is not None
        for line in path.read_bytes().splitlines():
            crc, _, content = line.partition(b" ")
            if crc != b"%08x" % zlib.crc32(content):
                return  # the process was killed while it wrote this line
            entry = parse_json(content)
            if self._fits(entry["facts"], entry["version"]):
                entries = self._found.setdefault((entry["seed"], entry["sample"]), [])
                del entries[entry["number"] :]  # the conversation began again
                entries.append(entry)

    def keep(self, key: Key, number: int, version: int, entry: Mapping[str, Any]) -> None:
        """Write the opening of a conversation (number 0) or a turn of it (from 1)."""
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            used = [int(path.name.split("-")[1]) for path in self._folder.glob(_FILES)]
            name = f"turns-{max(used, default=0) + 1:06d}-rank-{self._rank}.jsonl"
            self._file = (self._folder / name).open("xb", buffering=0)
        place = {"seed": key[0], "sample": key[1], "number": number, "version": version}
        content = json.dumps({**place, "facts": self._facts, **entry}).encode()
        self._file.write(b"%08x %s\n" % (zlib.crc32(content), content))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def delete(self) -> None:
        """Delete the files of this rank: the whole step is on disk."""
        for path in self._folder.glob(f"turns-*-rank-{self._rank}.jsonl"):
            path.unlink(missing_ok=True)


def packed_turn(turn: TurnRecord) -> dict[str, Any]:
    """A turn as plain data."""
    return asdict(turn) | {"observed": to_text(turn.observed)}


def unpacked_turn(stored: Mapping[str, Any]) -> TurnRecord:
    """The turn that `packed_turn` was given."""
    uses = tuple(ToolUse(**each) for each in stored["uses"])
    return TurnRecord(**{**stored, "observed": from_text("i", stored["observed"]), "uses": uses})


def to_text(values: array[Any]) -> str:
    """The bytes of an array in base64, so that every number is exact."""
    return base64.b64encode(values.tobytes()).decode()


def from_text(code: str, text: str) -> array[Any]:
    """The array that `to_text` was given."""
    return array(code, base64.b64decode(text))
