"""Frame: the values of rules on this rank's tokens of an update, from which a plan is made.

`Objective.plan` builds one frame per update, with detached columns. It reads columns. Other
expressions are computed token by token (`evaluator`), or over many tokens (`populations`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives import functional, statistics
from rlobj.objectives.evaluator import Values
from rlobj.objectives.populations import Populations
from rlobj.objectives.rules import COLUMNS, Level, nodes
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.statistics import Comm
from rlobj.objectives.tokens import COLUMN_NAMES, TokenBatch

_OPTIONAL = (
    *("ref_logprobs", "sampler_logprobs", "proxy_logprobs"),
    *("collision", "old_collision", "entropy_sensitivity", "turn", "turn_reward"),
)


class Frame(Populations):
    """This rank's tables of one update, joined, with the values of expressions on their rows.

    Args:
        tables: this rank's micro-batches; may be empty.
        columns: the TokenBatch columns to read, each with what reads it.
        comm: the process group.
        state: the objective's state: the controllers' values and the number of the update.

    Attributes:
        table: the joined table.

    Raises:
        BatchError: a column is absent or not finite on some rank; raised on all ranks.
    """

    def __init__(
        self,
        tables: Sequence[TokenBatch],
        columns: Mapping[str, str],
        comm: Comm,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.comm = comm
        self.state = state or {}
        self._batch: dict[str, Tensor] = {}  # columns of the TokenBatch
        self._columns: dict[str, Tensor] = {}  # columns of rules
        error, tokens, reported = "", 0, 0
        try:
            self.table = _join(tables, columns)
            for name, who in columns.items():
                self._batch[name] = self._read(name, who)
            if "sampler_logprobs" in columns and self.table.sampler_logprobs is not None:
                decided, unknown = self.table.decided, self.table.sampler_logprobs.isnan()
                tokens, reported = int(decided.sum()), int((decided & ~unknown).sum())
        except BatchError as exception:
            error = str(exception)
        double = any(table.logprobs.dtype == torch.float64 for table in tables)
        facts = comm.sum(torch.tensor([bool(error), double, tokens, reported], dtype=torch.int64))
        failed, double, tokens, reported = facts.tolist()
        if failed:
            raise BatchError(
                error or "another rank holds a table that cannot be used; see its error"
            )
        if tokens and not reported:
            raise BatchError(
                f"column 'sampler_logprobs' is NaN at all {tokens} tokens of the update, from row "
                f"0 on; {columns.get('sampler_logprobs', 'the loss')} reads it. Pass the log-probs "
                "that the sampler reported, or leave out what reads them"
            )
        self.dtype = torch.float64 if double else torch.float32
        self.device = self.table.logprobs.device
        self.decided = self.table.decided
        self.decided_responses = self.table.decided_responses
        self._all_decided = bool(self.decided.all())

    def _read(self, name: str, who: str) -> Tensor:
        """A TokenBatch column, detached; finite on rows of decided responses, [N]."""
        if name in ("rewards", "staleness"):  # [B]; a reward that is NaN means undecided
            return self.table.column(name, who).detach()
        return self.table.finite(name, who)

    def batch(self, name: str) -> Tensor:
        """A TokenBatch column in the frame's dtype, 0 on rows of undecided responses, [N]."""
        if name not in self._batch:
            raise BatchError(f"a custom rule asks for '{name}', which its `reads` does not return")
        values = self._known(name).to(self.dtype)
        return self.table.spread(values) if name in self.table.response_columns else values

    def _known(self, name: str) -> Tensor:
        """A TokenBatch column in its own dtype, 0 on undecided rows, [N] or [B]."""
        values = self._batch[name]
        if self._all_decided:
            return values
        of_responses = name in self.table.response_columns
        return values.masked_fill(~(self.decided_responses if of_responses else self.decided), 0)

    def read(self, node: nodes.Column | nodes.NamedReward) -> Values:
        name = str(node)
        if name not in self._columns:
            if isinstance(node, nodes.NamedReward):
                values = self._named_reward(node.name)
            elif name in self.table.columns:
                values = self._at_level(name, node.level)
            else:
                values = _VALUES[name](self) if name in _VALUES else self._of_score(name)
            self._columns[name] = values.to(self.dtype)
        return Values(self._columns[name])

    @property
    def sampler_known(self) -> Tensor:
        logprobs = self.table.sampler_logprobs
        assert logprobs is not None  # `_read` has refused a table without them
        return logprobs.isfinite() & self.decided

    def _at_level(self, name: str, level: Level) -> Tensor:
        """A column of a user's own with one value for each token, turn or response.

        Values per token must be the same on all tokens of the turn or the response.
        """
        values, table = self._known(name), self.table
        if name in table.response_columns:
            return self._spread(values, Level.RESPONSE, level)
        if level == Level.TOKEN:
            return values
        unit, unit_name = (
            (table.turns, "turn") if level == Level.TURN else (table.responses, "response")
        )
        starts = table.turn_starts
        if level == Level.RESPONSE:
            starts = table.starts.clamp(max=max(len(table) - 1, 0))
            empty = (table.lengths == 0) & self.decided_responses
            self.refuse(
                empty,
                f"column '{name}' has one value per token, and no token says what it is",
                level,
            )
        first = values[starts] if len(table) else values.new_zeros(len(starts))
        self.refuse(
            (values != first[unit]) & self.decided,
            f"column '{name}' is declared to have one value per {unit_name}, and differs from that "
            f"of the first token of its {unit_name}",
        )
        return first

    def whole_numbers(self, name: str, level: Level) -> Tensor:
        """A column of whole numbers of a user's own for each token, turn or response, int64."""
        values = self._at_level(name, level)
        whole = values.long()
        message = f"by='{name}' takes whole numbers, and the column has another number"
        self.refuse(whole != values, message, level)
        return whole

    def _of_score(self, name: str) -> Tensor:
        """A column of the TokenBatch, or one that a score gives: its probability or its gap."""
        score, _, kind = name.rpartition("_")
        if name in self._batch or kind not in ("logprob", "prob", "gap"):
            return self.batch(name)
        logprobs = self.batch(score_column(score))
        if kind == "gap":
            return logprobs - self.batch("logprobs")
        return logprobs.exp() if kind == "prob" else logprobs

    def _named_reward(self, name: str) -> Tensor:
        try:
            values = self.table.reward(name)
        except BatchError as error:  # `check` raises it on all ranks
            self._error = self._error or str(error)
            values = self.table.lengths
        return values.masked_fill(~self.decided_responses, 0)


def _covariance(frame: Frame) -> Tensor:
    advantages, logprobs = frame.batch("advantages"), frame.batch("logprobs")
    mean_advantage = statistics.exact_mean(advantages, frame.decided, frame.comm)
    mean_logprob = statistics.exact_mean(logprobs, frame.decided, frame.comm)
    return (advantages - mean_advantage) * (logprobs - mean_logprob)


_VALUES: dict[str, Callable[[Frame], Tensor]] = {
    "logprob": lambda frame: frame.batch("logprobs"),
    "prob": lambda frame: frame.batch("logprobs").exp(),
    "surprisal": lambda frame: -frame.batch("logprobs"),
    "old_logprob": lambda frame: frame.batch("old_logprobs"),
    "old_prob": lambda frame: frame.batch("old_logprobs").exp(),
    "old_surprisal": lambda frame: -frame.batch("old_logprobs"),
    "advantage": lambda frame: frame.batch("advantages"),
    "reward": lambda frame: frame.table.reward().masked_fill(~frame.decided_responses, 0),
    "ratio": lambda frame: functional.log_ratio(
        frame.batch("logprobs"), frame.batch("old_logprobs")
    ).exp(),
    "length": lambda frame: frame.table.lengths,
    "staleness": lambda frame: frame.table.column("staleness", "the rule"),
    "position": lambda frame: frame.table.positions,
    "turn": lambda frame: frame.table.turn_numbers[frame.table.turn_starts],
    "turn_position": lambda frame: (
        frame.table.positions - frame.table.positions[frame.table.turn_starts][frame.table.turns]
    ),
    "turn_reward": lambda frame: frame.batch("turn_reward")[frame.table.turn_starts],
    "covariance": _covariance,
    "sampler_gap": lambda frame: frame.batch("old_logprobs") - frame.batch("sampler_logprobs"),
    "gradient_norm": lambda frame: functional.gradient_norm(
        frame.batch("logprobs"), frame.batch("collision"), frame.batch("advantages")
    ),
}
"""The value of each column of rules on the frame's rows, [N]; rewards and lengths are [B], turns
and their rewards [T]. Columns that are not listed are those of the TokenBatch with the same name,
or of a score."""


def _join(tables: Sequence[TokenBatch], columns: Mapping[str, str]) -> TokenBatch:
    """This rank's tables as one table; an empty one if there are none."""
    if len(tables) > 1:
        unread = dict.fromkeys({*_OPTIONAL} - columns.keys())
        tables = [table.replace(**unread, mask=None) for table in tables]
    if tables:
        return TokenBatch.concat(tables)
    nothing = torch.zeros(0)
    names = {name for _, reads in COLUMNS.values() for name in reads} | {"advantages"}
    empty: dict[str, Any] = dict.fromkeys(names.intersection(COLUMN_NAMES) - {"logprobs"}, nothing)
    empty["columns"] = dict.fromkeys(columns.keys() - {*COLUMN_NAMES}, nothing)
    return TokenBatch(lengths=[], groups=[], ids=[], logprobs=nothing, **empty)  # type: ignore[arg-type]
