"""TokenBatch: a batch is a table with one row per trained token.

Columns are flat, response after response; prompts, tool output and padding are not rows.
Shapes: N = Σ lengths trained tokens, B responses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import BatchError, nearest
from rlobj.objectives import token_columns
from rlobj.objectives.rewards import check_rewards, named_reward, total_reward
from rlobj.objectives.rollouts import Rollouts, check_turns
from rlobj.objectives.statistics import SingleProcess

_PER_RESPONSE = ("groups", "ids", "rollouts", "rewards")
PER_TOKEN = (
    *("logprobs", "old_logprobs", "entropy", "old_entropy", "ref_logprobs", "sampler_logprobs"),
    *("proxy_logprobs", "collision", "old_collision", "entropy_sensitivity"),
    *("turn", "turn_reward", "versions"),
)
SPREAD = ("advantages", "staleness")
"""Columns that are given for each response or token, and kept for each token."""
_OLD = ("old_logprobs", "old_entropy", "old_collision")
_SHARED = ("reward_names", "reward_weights", "version")  # the same in all tables of an update
LOGPROBS = tuple(name for name in PER_TOKEN if name.endswith("logprobs"))
MAX_LOGPROB = 1e-3
"""Nats; a log-prob above 0 and up to this one is rounding."""
COLUMN_NAMES = (
    *("lengths", *_PER_RESPONSE, *_SHARED, *PER_TOKEN),
    *(*SPREAD, "columns", "index", "mask"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class TokenBatch:
    """One row per trained token, response after response.

    Columns in half precision are stored in float32; gradients flow back into the given tensors. A
    log-prob above 0 is an error; up to 1e-3 it is rounding and is stored as 0, with its gradient.

    Attributes:
        lengths: int [B], trained tokens of each response (0 allowed).
        groups: int [B], the id of the prompt's group, unique over all ranks.
        logprobs: [N], log π_θ(o_t) in nats; carries the gradient in `Objective.loss`.
        ids: int [B] or None, the response's id, unique over all ranks; for `Rule.sample`, and to
            find the rows of a table in a plan.
        rollouts: int [B] or None, the id of the rollout that the response is a row of, unique over
            all ranks; None = every response is a rollout of its own. The rows of a rollout, on any
            rank, have one group and one reward.
        rewards: [B], or [B, K] for K rewards, or None; NaN = undecided: a response with an
            undecided reward is treated as empty.
        versions: int [N] or None, the version of the weights that each token was drawn with: the
            number of optimizer steps that they had.
        version: that of the weights that train; None = the newest one in `versions`, over all
            tables and ranks of the update.
        staleness: int [B] or [N], stored as [N] (if B = N, read as [B]), or None, the steps between
            the weights that drew a token and those that train on it; default: version − versions,
            and 0 without `versions`.
        old_logprobs: [N] or None, log π_old(o_t); default: `logprobs` detached (on-policy).
        entropy: [N] or None, H of π_θ at the token's position, nats; may carry a gradient.
        old_entropy: [N] or None, H of π_old, nats; default: `entropy` detached, if
            `old_logprobs` is None too.
        ref_logprobs: [N] or None, log-probabilities under the reference policy.
        sampler_logprobs: [N] or None, log-probabilities that the sampler reported; NaN = unknown,
            read as `old_logprobs`.
        proxy_logprobs: [N] or None, log-probabilities under Lp-Reg's min-p proxy.
        collision: [N] or None, Σ_k π_k² over the vocabulary.
        old_collision: [N] or None, the same of π_old; default: `collision`, if `old_logprobs` is
            None too.
        entropy_sensitivity: [N] or None, as in `TokenScores`, nats; no stage reads it.
        turn: int [N] or None, the turn of a conversation that the token is in, from 0; it does not
            decrease in a response, and the number of a turn without tokens is absent. It counts
            through all rows of a rollout. None = every response is one turn.
        turn_reward: [N] or None, the reward of the token's turn. Those of a response add up to its
            reward: what is given after the end belongs to the last turn. None = the response's
            reward, if every response is one turn.
        advantages: [B] or [N] or None, stored as [N] (if B = N, read as [B]); None =
            `Objective.plan` computes them from rewards.
        index: the table's position among the tables of a `split`.
        mask: bool [B, T] or None, the positions of the rows in the padded tensors they came from.
        reward_names: the names of the K rewards, or None.
        reward_weights: the weights of the K rewards in their sum; None = 1 each.
        columns: columns of your own, [N] for one value per token or per turn, or [B] for one per
            response (if B = N, [B, 1], except for NAME_bootstrap); rules read them by name if the
            objective declares them: `Objective(columns={"stage": "response"})`. Whole numbers stay
            int64.

    Example:
        >>> batch = TokenBatch(lengths=[2, 1], groups=[0, 0], logprobs=[-0.1, -2.0, -0.5])
        >>> len(batch), batch.row(2)
        (3, 'response 1, token 0')
    """

    lengths: Tensor
    groups: Tensor
    logprobs: Tensor
    ids: Tensor | None = None
    rollouts: Tensor | None = None
    rewards: Tensor | None = None
    versions: Tensor | None = None
    version: int | None = None
    staleness: Tensor | None = None
    old_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    old_entropy: Tensor | None = None
    ref_logprobs: Tensor | None = None
    sampler_logprobs: Tensor | None = None
    proxy_logprobs: Tensor | None = None
    collision: Tensor | None = None
    old_collision: Tensor | None = None
    entropy_sensitivity: Tensor | None = None
    turn: Tensor | None = None
    turn_reward: Tensor | None = None
    advantages: Tensor | None = None
    index: int | None = None
    mask: Tensor | None = None
    reward_names: tuple[str, ...] | None = None
    reward_weights: tuple[float, ...] | None = None
    columns: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    response_columns: frozenset[str] = dataclasses.field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        self._read(COLUMN_NAMES)

    def _with(self, **columns: Any) -> TokenBatch:
        """A copy with columns that are in order already: nothing is checked."""
        table = object.__new__(TokenBatch)
        names = (field.name for field in dataclasses.fields(TokenBatch))
        vars(table).update({name: getattr(self, name) for name in names} | columns)
        return table

    def _read(self, names: Collection[str]) -> None:
        """Check some columns and store them in one form."""
        columns = vars(self)
        for name in ("logprobs", "lengths", *_PER_RESPONSE, *PER_TOKEN[1:], *SPREAD):
            required = name in ("logprobs", "lengths", "groups")
            if name in names and (required or columns[name] is not None):
                logprobs = None if name == "logprobs" else self.logprobs
                columns[name] = token_columns.numbers(name, columns[name], logprobs)
        for name in _SHARED:
            if name in names and (value := columns[name]) is not None and name != "version":
                if isinstance(value, str):
                    raise BatchError(f"{name} is {value!r}; expected a list, one for each reward")
                columns[name] = tuple(value.tolist() if hasattr(value, "tolist") else value)
        self._check_shapes(names)
        if not {"lengths", "turn", "turn_reward"}.isdisjoint(names):
            self._check_turns()
        of_rollouts = {"rollouts", "groups", "rewards", "lengths", "turn"}
        if self.rollouts is not None and not of_rollouts.isdisjoint(names):
            alike = {"groups": self.groups, "rewards": self.alike_rewards}
            Rollouts.of(self.rollouts, SingleProcess(), self.response_ids, **alike)
            if self.turn is not None:
                check_turns(*self.rollout_turns)
        again = not {"lengths", "rewards"}.isdisjoint(names)  # which say what is decided
        self._round_logprobs(LOGPROBS if again else [name for name in LOGPROBS if name in names])
        if "columns" in names:
            known, form = self.response_columns, (self.logprobs, self.lengths, COLUMN_NAMES)
            users = {
                name: token_columns.user_column(
                    name, value, *form, name in known or name.endswith("_bootstrap")
                )
                for name, value in token_columns.mapping(self.columns).items()
            }
            columns["columns"] = {name: column for name, (column, _) in users.items()}
            columns["response_columns"] = frozenset(name for name, (_, of) in users.items() if of)
        for name in SPREAD:
            value = columns[name] if name in names else None
            if value is not None and len(value) == len(self.lengths):
                columns[name] = self.spread(value)

    def _check_shapes(self, names: Collection[str]) -> None:
        if self.lengths.dim() != 1 or (self.lengths < 0).any():
            raise BatchError(f"column 'lengths' is {self.lengths}; expected [B], each 0 or more")
        responses, tokens = len(self.lengths), int(self.lengths.sum())
        if self.versions is not None and self.staleness is not None:
            raise BatchError("versions and staleness are given; leave out staleness, which follows")
        for name in (*_PER_RESPONSE, *PER_TOKEN, *SPREAD):
            value = getattr(self, name)
            if value is None:
                continue
            allowed = {
                **{key: {(tokens,), (responses,)} for key in {*SPREAD}.intersection(names)},
                **{key: {(responses,)} for key in _PER_RESPONSE},
                "rewards": {(responses,), (responses, max([1, *value.shape[1:2]]))},
            }.get(name, {(tokens,)})
            if tuple(value.shape) not in allowed:
                expected = " or ".join(str(list(shape)) for shape in sorted(allowed))
                shape = list(value.shape)
                raise BatchError(f"column '{name}' has shape {shape}, expected {expected}")
        check_rewards(self.rewards, self.reward_names, self.reward_weights)

    def _check_turns(self) -> None:
        """Turns count up in a response, and all tokens of a turn have one reward."""
        if self.turn is not None:
            earlier = torch.zeros_like(self.turn)
            earlier[1:] = torch.where(self.positions[1:] > 0, self.turn[:-1], 0)
            if (wrong := self.turn < earlier).any():
                row = int(wrong.nonzero()[0])
                raise BatchError(f"column 'turn' decreases or is negative at {self.row(row)}")
        if self.turn_reward is not None:
            first = self.turn_reward[self.turn_starts][self.turns]
            undecided = self.turn_reward.isnan() & first.isnan()
            if (wrong := (self.turn_reward != first) & ~undecided).any():
                row = int(wrong.nonzero()[0])
                raise BatchError(f"column 'turn_reward' changes within a turn at {self.row(row)}")

    def _round_logprobs(self, names: Sequence[str]) -> None:
        """Store 0 for a log-prob above 0 that is rounding; the gradient stays."""
        columns = {name: column for name in names if (column := getattr(self, name)) is not None}
        above = [(values > 0).any() for values in columns.values()]
        if above and torch.stack(above).any():
            for name, values in columns.items():
                over = values > 1.000001 * MAX_LOGPROB  # float32 has no 1e-3
                wrong = over & values.isfinite() & self.decided
                if wrong.any():
                    row = int(wrong.nonzero()[0])
                    raise BatchError(
                        f"column '{name}' is {values[row].item():g} at row {row} "
                        f"({self.row(row)}); log-probs are at most 0"
                    )
                rounded = torch.where((values > 0) & ~over, values - values.detach(), values)
                vars(self)[name] = rounded

    def __len__(self) -> int:
        return len(self.logprobs)

    def __repr__(self) -> str:
        present = [name for name in COLUMN_NAMES if getattr(self, name) is not None]
        columns = [*(name for name in present if name != "columns"), *self.columns]
        return f"TokenBatch({len(self.lengths)} responses, {len(self)} tokens: {columns})"

    # Rows and responses.

    @property
    def response_ids(self) -> Tensor:
        """int [B], the responses' ids; without ids their positions."""
        if self.ids is None:
            return torch.arange(len(self.lengths), device=self.lengths.device)
        return self.ids

    @cached_property
    def starts(self) -> Tensor:
        """int [B], the first row of each response."""
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def responses(self) -> Tensor:
        """int [N], the response that each row belongs to."""
        return self.spread(torch.arange(len(self.lengths), device=self.lengths.device))

    @cached_property
    def positions(self) -> Tensor:
        """int [N], each row's position in its response, from 0."""
        rows = torch.arange(len(self), device=self.lengths.device)
        return rows - self.spread(self.starts)

    @cached_property
    def decided(self) -> Tensor:
        """bool [N], rows of responses whose reward is not NaN; all rows without rewards."""
        return self.spread(self.decided_responses)

    @cached_property
    def decided_responses(self) -> Tensor:
        """bool [B], responses whose reward is not NaN; all responses without rewards."""
        if self.rewards is None:
            return torch.ones_like(self.lengths, dtype=torch.bool)
        return ~self.reward().isnan()

    @property
    def newest(self) -> int | None:
        """`version`, or the newest one that a token of a decided response has; None = none."""
        if self.versions is None or self.version is not None:
            return self.version
        versions = self.versions[self.decided]
        return int(versions.max()) if len(versions) else None

    @property
    def alike_rewards(self) -> Tensor:
        """What the rows of a rollout have the same of: float64 [B, K], NaN if undecided."""
        if self.rewards is None:
            return self.lengths.double()[:, None] * 0
        rewards = self.rewards.double().reshape(len(self.lengths), self.rewards[:1].numel() or 1)
        return rewards.masked_fill(~self.decided_responses[:, None], torch.nan)

    # Turns: T, those that have tokens, one after another.

    @cached_property
    def turn_numbers(self) -> Tensor:
        """int [N], the column `turn`, or 0 without it."""
        return torch.zeros_like(self.responses) if self.turn is None else self.turn

    @cached_property
    def turn_starts(self) -> Tensor:
        """int [T], the first row of each turn."""
        new = self.positions == 0
        new[1:] |= self.turn_numbers[1:] != self.turn_numbers[:-1]
        return new.nonzero().squeeze(1)

    @cached_property
    def turns(self) -> Tensor:
        """int [N], the turn that each row belongs to, among the T turns of the table."""
        first = torch.zeros_like(self.responses)
        first[self.turn_starts] = 1
        return first.cumsum(0) - 1

    @cached_property
    def of_turns(self) -> Tensor:
        """int [T], the response that each turn belongs to."""
        return self.responses[self.turn_starts]

    @property
    def rollout_turns(self) -> tuple[Tensor, Tensor]:
        """The rollout and the number of each turn of a decided response, int [T'] each."""
        assert self.rollouts is not None
        decided = self.decided_responses[self.of_turns]
        return self.rollouts[self.of_turns][decided], self.turn_numbers[self.turn_starts][decided]

    def any_by_turn(self, per_token: Tensor) -> Tensor:
        """bool [N] -> [T]: whether any row of the turn is True."""
        holds = torch.zeros(len(self.turn_starts), dtype=torch.bool, device=per_token.device)
        holds[self.turns[per_token]] = True
        return holds

    def row(self, n: int) -> str:
        """Row n in words, for error messages."""
        return f"response {int(self.responses[n])}, token {int(self.positions[n])}"

    def spread(self, per_response: Tensor) -> Tensor:
        """[B] -> [N]: the value of each row's response."""
        return per_response.repeat_interleave(self.lengths, 0, output_size=len(self))

    def sum_by_response(self, per_token: Tensor) -> Tensor:
        """[N] -> [B]: Σ over the rows of each response, differentiable."""
        zeros = per_token.new_zeros(len(self.lengths))
        return zeros.index_add(0, self.responses, per_token)

    def any_by_response(self, per_token: Tensor) -> Tensor:
        """bool [N] -> [B]: whether any row of the response is True."""
        holds = torch.zeros(len(self.lengths), dtype=torch.bool, device=per_token.device)
        holds[self.responses[per_token]] = True
        return holds

    def mean_by_response(self, per_token: Tensor) -> Tensor:
        """[N] -> [B]: mean over the rows of each response; 0 for a response without rows."""
        return self.sum_by_response(per_token) / self.lengths.clamp(min=1)

    def rows(self, responses: Sequence[int] | Tensor) -> Tensor:
        """int [M], the rows of these responses, one response after another in this order."""
        chosen = torch.as_tensor(responses, dtype=torch.int64, device=self.lengths.device)
        starts, lengths = self.starts[chosen], self.lengths[chosen]
        before = lengths.cumsum(0) - lengths
        total = int(lengths.sum())
        offsets = torch.arange(total, device=lengths.device)
        return offsets + (starts - before).repeat_interleave(lengths, output_size=total)

    # Columns.

    def column(self, name: str, who: str) -> Tensor:
        """A column, or its default.

        Args:
            name: the column.
            who: what reads it, for the error message.

        Raises:
            BatchError: the table has no such column.
        """
        value = self.columns[name] if name in self.columns else getattr(self, name, None)
        if value is None and self.old_logprobs is None and name in _OLD:
            value = getattr(self, name.removeprefix("old_"))
            value = None if value is None else value.detach()
        if value is None and name == "staleness":
            if self.versions is None or (newest := self.newest) is None:
                return torch.zeros_like(self.responses)
            return newest - self.versions
        if value is None and name == "turn":
            return self.turn_numbers
        if value is None and name == "turn_reward" and not self.turn_numbers.any():
            return self.spread(self.reward())
        if value is not None and name == "sampler_logprobs":
            return torch.where(value.isnan(), self.column("old_logprobs", who), value)
        if value is None:
            typed = f"{name}=..." if name in COLUMN_NAMES else f"columns={{{name!r}: ...}}"
            raise BatchError(f"{who} needs the column '{name}'; pass TokenBatch({typed})")
        return value

    def finite(self, name: str, who: str) -> Tensor:
        """A column, detached; finite on the rows of decided responses, [N] (or [B], see `columns`).

        Raises:
            BatchError: the column is absent or not finite; names the column, the row and `who`.
        """
        values, of_responses = self.column(name, who).detach(), name in self.response_columns
        bad = ~values.isfinite() & (self.decided_responses if of_responses else self.decided)
        if bad.any():
            row = int(bad.nonzero()[0])
            place = f"response {row}" if of_responses else f"row {row} ({self.row(row)})"
            raise BatchError(f"column '{name}' is {values[row].item()} at {place}; {who} reads it")
        return values

    def reward(self, name: str | None = None) -> Tensor:
        """The reward with this name, [B]; None = the weighted sum of all rewards.

        Raises:
            BatchError: the table has no rewards, or none with this name.
        """
        column = self.column("rewards", "the reward" if name is None else f"reward('{name}')")
        if name is None:
            return total_reward(column, self.reward_weights)
        return named_reward(column, self.reward_names, name)

    def replace(self, **columns: Any) -> TokenBatch:
        """A copy with other columns and the same index.

        Raises:
            BatchError: there is no such column.
        """
        for name in columns.keys() - {*COLUMN_NAMES}:
            raise BatchError(f"TokenBatch has no column '{name}'.{nearest(name, COLUMN_NAMES)}")
        table = self._with(**columns)
        again = "lengths" in columns  # by which all columns have their shapes
        table._read({*COLUMN_NAMES} - ({*SPREAD} - columns.keys()) if again else columns)
        return table

    def with_columns(self, columns: Mapping[str, Tensor]) -> TokenBatch:
        """A copy with these columns: those of every table, and columns of your own by their names.

        The names are not checked.
        """
        users = {name: values for name, values in columns.items() if name not in COLUMN_NAMES}
        fields: dict[str, Any] = {name: columns[name] for name in columns.keys() - users.keys()}
        return self.replace(**fields, columns={**self.columns, **users})

    def credited(self, **columns: Tensor) -> TokenBatch:
        """A copy with `advantages` or `staleness` per token, [N], also if B = N."""
        numbers, logprobs = token_columns.numbers, self.logprobs
        return self._with(**{name: numbers(name, columns[name], logprobs) for name in columns})

    # Splitting and token_columns.

    def split(self, parts: int | Sequence[int]) -> list[TokenBatch]:
        """Consecutive tables of whole responses, with their index and with ids.

        Args:
            parts: the number of tables (their sizes differ by at most one), or the number of
                responses of each table.

        Raises:
            BatchError: fewer than one table, or sizes that do not add up to the responses.
        """
        total = len(self.lengths)
        if isinstance(parts, int):
            sizes = [total // parts + (i < total % parts) for i in range(parts)]
        else:
            sizes = [int(size) for size in parts]
        if sum(sizes) != total or min(sizes, default=0) < 0 or not sizes:
            raise BatchError(f"split sizes {sizes} must add up to the {total} responses")
        ends = torch.tensor([0, *sizes]).cumsum(0)
        rows = torch.cat([ends[:1], self.lengths.cpu().cumsum(0)])[ends].tolist()
        spans = zip(pairwise(ends.tolist()), pairwise(rows), strict=True)
        return [
            self._take(slice(*responses), slice(*span), index)
            for index, (responses, span) in enumerate(spans)
        ]

    def select(self, responses: Sequence[int] | Tensor, index: int | None = None) -> TokenBatch:
        """A table of these responses, in this order.

        Args:
            responses: positions in this table, from 0.
            index: the index of the new table.
        """
        chosen = torch.as_tensor(responses, dtype=torch.int64, device=self.lengths.device)
        return self._take(chosen, self.rows(chosen), index)

    def _take(
        self, responses: Tensor | slice, rows: Tensor | slice, index: int | None
    ) -> TokenBatch:
        """The table of these responses and rows, with ids; slices share memory with this table."""
        chosen = dict.fromkeys(("lengths", *_PER_RESPONSE, "mask"), responses)
        chosen |= dict.fromkeys((*PER_TOKEN, *SPREAD), rows)
        whole = {name: getattr(self, name) for name in chosen} | {"ids": self.response_ids}
        taken = {
            name: None if column is None else column[chosen[name]] for name, column in whole.items()
        }
        users = {
            name: column[responses if name in self.response_columns else rows]
            for name, column in self.columns.items()
        }
        return self._with(**taken, columns=users, index=index)

    @staticmethod
    def concat(tables: Sequence[TokenBatch]) -> TokenBatch:
        """One table with the responses of all tables, in order.

        Raises:
            BatchError: some tables lack a column that others have, or their rewards have other
                names or weights.
        """
        if len(tables) == 1:
            return tables[0]._with(index=None)

        def join(name: str, values: Sequence[Tensor | None]) -> Tensor | None:
            present = [value for value in values if value is not None]
            if present and len(present) < len(values):
                raise BatchError(f"column '{name}' is in some tables and not in all")
            return torch.cat(present) if present else None

        per_row = ("lengths", *_PER_RESPONSE, *PER_TOKEN, *SPREAD)
        joined: dict[str, Any] = {
            name: join(name, [getattr(table, name) for table in tables]) for name in per_row
        }
        filled = [table for table in tables if len(table.lengths)] or tables
        of_responses = frozenset.intersection(*(table.response_columns for table in filled))
        own_names = dict.fromkeys(name for table in tables for name in table.columns)
        joined["columns"] = {
            name: join(name, [table._own(name, name in of_responses) for table in tables])
            for name in own_names
        }
        for name in _SHARED:
            joined[name] = getattr(tables[0], name)
            if any(getattr(table, name) != joined[name] for table in tables):
                raise BatchError(f"the tables differ in {name}")
        masks = [table.mask for table in tables if table.mask is not None]
        same = len(masks) == len(tables) and len({mask.shape[1] for mask in masks}) == 1
        mask = torch.cat(masks) if same else None
        return tables[0]._with(**joined, mask=mask, response_columns=of_responses, index=None)

    def _own(self, name: str, by_response: bool) -> Tensor | None:
        """A column of one's own, [B] or [N]; None if there is none."""
        value = self.columns.get(name)
        spread = value is not None and name in self.response_columns and not by_response
        return self.spread(value) if spread else value  # type: ignore[arg-type]

    # Padded tensors, as other trainers use them.

    @classmethod
    def from_padded(cls, mask: Tensor, logprobs: Tensor, **columns: Any) -> TokenBatch:
        """A table from [B, T] columns and a mask of the trained positions.

        Args:
            mask: [B, T], 1 or True at trained tokens, else 0.
            logprobs: [B, T].
            columns: any other columns, [B, T]; groups, ids, advantages and staleness may be [B];
                rewards are [B] or [B, K] and need `groups`, which is one group by default.

        Raises:
            BatchError: a wrong value or shape, lengths, or rewards without groups.
        """
        columns = {"logprobs": logprobs, **columns}
        flat = token_columns.flat_columns(mask, columns, PER_TOKEN, SPREAD)
        spread = {name: flat.pop(name) for name in SPREAD if name in flat}
        table = cls(**flat).credited(**spread)
        table._check_shapes(())
        return table

    def to_padded(self, per_token: Tensor, fill: float = 0.0) -> Tensor:
        """[N] -> [B, T]: values at the positions of `from_padded`'s mask.

        Without a mask the rows are left-aligned, and T is the longest response.
        """
        if per_token.shape[:1] != self.logprobs.shape:
            raise BatchError(f"to_padded expects [{len(self)}], got {list(per_token.shape)}")
        mask = self.mask
        if mask is None:
            width = int(self.lengths.max()) if len(self.lengths) else 0
            mask = torch.arange(width, device=self.lengths.device) < self.lengths[:, None]
        padded = per_token.new_full(mask.shape, fill)
        return padded.masked_scatter(mask.to(padded.device), per_token)
