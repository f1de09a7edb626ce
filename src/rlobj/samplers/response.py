"""Response: what a policy answered to a prompt, from the sampler to the pages of a run."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rlobj.base.interleaved import Interleaved

if TYPE_CHECKING:
    from rlobj.data import Problem
    from rlobj.rewards import Graded
    from rlobj.rewards.functions import ColumnValue


ROWS = 10**9
"""The distance between the ids of two rows of a rollout."""


@dataclass(frozen=True)
class ToolUse:
    """One call of a tool: what the record keeps of it.

    Attributes:
        name: of the tool.
        error: "" if it returned, else "malformed" (the call), "error" (it raised `ToolError`),
            "exception: ..." (another one, with its file and line), "timeout", "crash" (its process
            ended) or "flood" (it wrote too much).
        seconds: that it took.
    """

    name: str
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class TurnRecord:
    """A turn of the policy, and what the environment answered.

    Attributes:
        size: tokens that the policy wrote.
        text: of these tokens, without special tokens.
        observed: token ids that the policy reads next; empty after the last turn.
        observation: their text, without what the chat template adds, or that of a new context with
            which the next row begins; "" after the last turn.
        reward: of the turn.
        correct: what the environment says of the whole response.
        uses: the calls of tools.
        end: "" = the conversation went on; else why it ended: "done" or a name in
            `conversations.environment.ENDS`.
        number: of the turn in its rollout, over all its rows, from 0.
        row: of the turn in its rollout, from 0, and what began it; `whole` sets both.
    """

    size: int
    text: str
    observed: array[int]
    observation: str = ""
    reward: float = 0.0
    correct: bool | None = None
    uses: tuple[ToolUse, ...] = ()
    end: str = ""
    number: int = 0
    row: int = 0
    began: str = ""


@dataclass(slots=True, repr=False)
class Response:
    """One response to one prompt. It never changes: `dataclasses.replace` adds what comes later.

    A sampler gives the first fields, as for the prompt "1+1=", the response "2" and end of text, at
    weight version 3: `Response([5, 10, 5, 12], [6, 1], [-0.7, -0.1], "2", "stop", 3)`. Grading and
    training add those from `id` to `score_prompts`, and an evaluation `seed` and `length`.

    Attributes:
        prompt: token ids. They are kept as an array of four bytes a value, as are the fields below;
            one that is such an array is not copied, so that a group can share it.
        tokens: token ids of the response. An EOS token that the model drew is included, and it is
            trained on.
        logprobs: log-probability of each token, in nats, under the distribution it was drawn from:
            after the temperature, renormalised over the tokens that top-k, top-p and min-p leave.
            Greedy tokens have 0. NaN = unknown.
        text: `tokens` decoded without special tokens; a stop string is included.
        finish: "stop" = an EOS token or a stop string; "length" = `max_tokens` reached. Of a
            conversation: "stop" = it was done, or went on in another row; "length" = it was cut.
        weight_version: the version of the weights at its end; 0 before the first `sync`.
        versions: (version, number of tokens) of each run of tokens that weights of one version
            drew, in order; () = all are of `weight_version`.
        turns: of a conversation: its turns; `tokens` and `logprobs` are those of all turns, and
            `text` is that of the last one. () = the response is one turn.
        began: why this row of its rollout began: "" = with the rollout, "restart" = the
            environment gave the policy a new context, "call" = the policy answers as a sub-agent.
        id: unique in the step over all ranks; row k of rollout r has r + k·10⁹. In an evaluation,
            the rollout is the index among the problem's.
        group: id of its prompt's group, unique in the step over all ranks.
        problem: the problem that it answers.
        grade: its grade. In training, its rewards have the length penalty; several rewards end with
            it.
        columns: the run's own columns, each with one value or one for each token.
        turn_rewards: of the turns of a conversation; they add up to the reward.
        score_prompts: the token ids of the prompt of each score that has a prompt of its own, and
            for that model of a score of several which scores the response.
        seed: of sampling; the same seed, prompt, weights and engine give the response again.
        length: the number of tokens. An evaluation keeps only this of them.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    logprobs: Sequence[float]
    text: str
    finish: Literal["stop", "length"]
    weight_version: int
    turns: Sequence[TurnRecord] = ()
    began: Literal["", "restart", "call"] = ""
    id: int = 0
    group: int = 0
    problem: Problem = None  # pyright: ignore[reportAssignmentType]  # before grading
    grade: Graded = None  # pyright: ignore[reportAssignmentType]  # before grading
    columns: Mapping[str, ColumnValue] = field(default_factory=dict)
    turn_rewards: Sequence[float] = ()
    score_prompts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seed: int = 0
    length: int = 0
    versions: Sequence[tuple[int, int]] = ()

    def __post_init__(self) -> None:
        self.prompt, self.tokens = packed("i", self.prompt), packed("i", self.tokens)
        self.logprobs, self.turns = packed("f", self.logprobs), tuple(self.turns)
        self.length = len(self.tokens) or self.length
        self.versions = tuple(self.versions) or ((self.weight_version, self.length),)

    @property
    def interleaved(self) -> Sequence[int]:
        """The token ids of the response, with what was said between them in a conversation."""
        if not self.turns:
            return self.tokens
        ends = itertools.accumulate(turn.size for turn in self.turns)
        heard = [(end, turn.observed) for end, turn in zip(ends, self.turns, strict=True)]
        return Interleaved(self.tokens, heard)

    @property
    def rollout(self) -> int:
        """The id of its rollout, that of the rollout's first row."""
        return self.id % ROWS

    @property
    def reward(self) -> float:
        """The reward; NaN = undecided."""
        return self.grade.reward

    @property
    def cut_without_verdict(self) -> bool:
        """Whether a conversation was cut before its environment gave a verdict: it is wrong."""
        grade = self.grade
        cut = bool(self.turns) and self.finish == "length"
        return cut and not grade.undecided and grade.correct is None

    def __repr__(self) -> str:
        return (
            f"Response({self.text!r}, {len(self.prompt)} + {self.length} tokens, {self.finish!r}, "
            f"version {self.weight_version})"
        )


def rollouts_of(responses: Iterable[Response]) -> list[list[Response]]:
    """The rows of each rollout, of whole rollouts one after another."""
    rollouts: list[list[Response]] = []
    for response in responses:
        rollouts += [] if response.began else [[]]
        rollouts[-1].append(response)
    return rollouts


def whole(rows: Sequence[Response]) -> Response:
    """A rollout as one response: what graders, metrics and evaluations count.

    It has the turns of all rows in the order of time, and `length` of all rows, but no tokens. All
    else is of the row, no sub-agent's, whose last turn ended the rollout. This turn is the last
    one, also if sub-agents answered it. A rollout of one row is that row.

    Args:
        rows: of the rollout, in order.
    """
    if len(rows) == 1:
        return rows[0]
    last = max((r for r in rows if r.began != "call"), key=lambda row: row.turns[-1].number)
    final = last.turns[-1].number
    turns = [
        replace(turn, row=i, began=row.began) for i, row in enumerate(rows) for turn in row.turns
    ]
    none: Any = {"prompt": rows[0].prompt, "tokens": (), "logprobs": (), "turn_rewards": ()}
    turns.sort(key=lambda turn: (turn.number == final, turn.number))
    length = sum(row.length for row in rows)
    return replace(last, **none, turns=turns, began="", id=rows[0].id, length=length)


def packed(code: Literal["i", "f"], values: Iterable[Any]) -> array[Any]:
    """The values as a four-byte array; an array of this type is returned unchanged."""
    if isinstance(values, array) and values.typecode == code:
        return values
    return array(code, values)
