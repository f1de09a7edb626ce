"""A rollout that goes on: its rows, and what the policy may still write in them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlobj.conversations.calls import CallReader
from rlobj.conversations.environment import Message
from rlobj.conversations.rendering import Rendering
from rlobj.samplers import Feed, Request, Response, SamplingSettings, derive_seed
from rlobj.samplers.response import ROWS, TurnRecord

Place = tuple[int, ...]
"""The number of a problem, and that of the rollout among those about it. Of a sub-agent also the
number of the turn that called it, and its own among these calls."""


@dataclass(frozen=True)
class Sampling:
    """What the turns of a rollout are drawn with; the seed is its problem's."""

    feed: Feed[Request]
    settings: SamplingSettings
    problem_seed: int

    def seed(self, place: Place, purpose: str, turn: int) -> int:
        """The seed for something in a turn of a rollout."""
        return derive_seed(self.problem_seed, *place[1:], purpose, turn)


@dataclass
class Row:
    """A row so far.

    Attributes:
        prompt: token ids that the policy reads first.
        messages: what was said.
        began: as in `Response`.
        turns: of the policy; the last one may wait for its answer.
        tokens, logprobs: of the policy's turns.
        versions: as in `Response`.
    """

    prompt: array[int]
    messages: list[Message]
    began: Literal["", "restart", "call"] = ""
    turns: list[TurnRecord] = field(default_factory=list)
    tokens: array[int] = field(default_factory=lambda: array("i"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    versions: list[tuple[int, int]] = field(default_factory=list)

    def add(self, number: int, sample: Response) -> None:
        """Add a turn, which nobody has answered."""
        size = len(sample.tokens)
        self.turns.append(TurnRecord(size, sample.text, array("i"), number=number))
        self.tokens.extend(sample.tokens)
        self.logprobs.extend(sample.logprobs)
        for version, count in sample.versions:
            if self.versions and self.versions[-1][0] == version:
                count += self.versions.pop()[1]
            self.versions.append((version, count))

    def change(self, **fields: Any) -> None:
        """Change fields of the last turn."""
        self.turns[-1] = replace(self.turns[-1], **fields)

    def read(self) -> array[int]:
        """All token ids that the policy has read and written."""
        ids, start = array("i", self.prompt), 0
        for turn in self.turns:
            ids += self.tokens[start : start + turn.size]
            ids += turn.observed
            start += turn.size
        return ids


@dataclass
class OpenRollout:
    """A rollout that goes on, or what a sub-agent does in one.

    Attributes:
        sampling: the call that it belongs to.
        place: its own.
        rendering: of what is said to the policy.
        reader: finds calls of tools; None = there are no tools.
        turns, tokens: the policy's largest numbers in all rows.
        rows: in the order in which they began.
    """

    sampling: Sampling
    place: Place
    rendering: Rendering
    reader: CallReader | None
    turns: int
    tokens: int
    rows: list[Row]

    @property
    def row(self) -> Row:
        """The row in which the policy goes on: no sub-agent's, unless it is one itself."""
        return next((row for row in self.rows[::-1] if row.began != "call"), self.rows[0])

    @property
    def turns_left(self) -> int:
        """Turns that the policy may still have."""
        return self.turns - self.count

    @property
    def tokens_left(self) -> int:
        """Tokens that the policy may still write in all rows."""
        return self.tokens - sum(len(row.tokens) for row in self.rows)

    @property
    def count(self) -> int:
        """Turns so far, in all rows."""
        return sum(len(row.turns) for row in self.rows)

    def room(self, row: Row, heard: int, context: int | None) -> int:
        """Tokens that the policy may write in its next turn.

        Args:
            row: where it goes on.
            heard: tokens that it reads before.
            context: largest number of tokens of a row; None = any.
        """
        most = min(self.sampling.settings.max_tokens - len(row.tokens), self.tokens_left)
        return most if context is None else min(most, context - len(row.read()) - heard)

    def take(self, agent: OpenRollout) -> str:
        """Take in the row of a sub-agent, and number its turns; returns what it said last."""
        [row], before = agent.rows, self.count
        row.turns = [replace(turn, number=before + turn.number) for turn in row.turns]
        self.rows.append(row)
        return row.turns[-1].text

    def responses(self) -> list[Response]:
        """The rows, whose ids are those of a rollout that has its number as id."""
        ids = range(self.place[1], self.place[1] + len(self.rows) * ROWS, ROWS)
        return [
            Response(
                prompt=row.prompt,
                tokens=row.tokens,
                logprobs=row.logprobs,
                text=row.turns[-1].text,
                finish="stop" if row.turns[-1].end in ("done", "") else "length",
                weight_version=row.versions[-1][0],
                versions=row.versions,
                turns=row.turns,
                began=row.began,
                id=number,
            )
            for number, row in zip(ids, self.rows, strict=True)
        ]
