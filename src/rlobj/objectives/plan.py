"""Plan: the numbers that `Objective.plan` fixes for an update, and that its losses read.

Its clauses say what the objective did to each token, and which part of a rule decided it. The first
effect that applies counts. Importance weights between the bounds of a mismatch correction touch no
token, and neither does a penalty on all tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives.rules import Expr
from rlobj.objectives.tokens import TokenBatch

EFFECTS = ("dropped", "masked", "reweighted", "switched", "penalised")
"""What an objective does to tokens; the first that applies to a token is its effect."""


@dataclass(frozen=True)
class Clauses:
    """What an objective did to each token.

    Attributes:
        factor: m·ω, [N]; 0 outside the phase.
        in_phase: the tokens of decided responses in the phase, bool [N].
        codes: the place in `causes`, int16 [N]; −1 = the token was not touched.
        causes: pairs of effect and clause; `rlobj.parse` reads a clause without names of `let`,
            which only very long ones have.
    """

    factor: Tensor
    in_phase: Tensor
    codes: Tensor
    causes: list[tuple[str, str]] = field(default_factory=list)

    def mark(self, effect: str, clause: Expr | str, where: Tensor) -> None:
        """Touch the tokens of `where` [N] that are in the phase and not touched yet."""
        self.codes.masked_fill_(where & self.in_phase & (self.codes < 0), len(self.causes))
        self.causes.append((effect, clause if isinstance(clause, str) else clause.written_out()))

    def touched(self, effect: str) -> Tensor:
        """The tokens with this effect, bool [N]."""
        places = [place for place, (mark, _) in enumerate(self.causes) if mark == effect]
        return torch.isin(self.codes, self.codes.new_tensor(places))


@dataclass(frozen=True)
class Plan:
    """The masks, weights and divisors of one optimizer update.

    Attributes:
        weights: m·ω/Z_t, [N] for each table; the policy loss is −Σ weights·S.
        penalties: c_k/Z_k on the penalty's tokens, 0 elsewhere, [N] for each table and penalty.
        value_shares: c_k/Z_k of the losses of values, as `penalties`.
        advantages: A, [N] for each table.
        values: the values of the surrogate's rules and of expression-valued settings, [N] for each
            table, by their text; and NAME_return of a value that is trained.
        empty: all weights and shares of penalties are 0, on all ranks. The trainer skips such an
            update of the policy.
        tokens: number of tokens of decided responses, over all ranks.
        kept: number of tokens that the objective keeps, over all ranks.
        metrics: metrics of the whole update: fractions of selected tokens, controllers' values.
        responses: the lengths and ids of each table's responses, (int [B], int [B] or None), on the
            CPU; () in a plan of some rows.
        off_policy: the tables had `old_logprobs`, so those of the loss must have them.
        clauses: what the objective did to each token of all tables, if it was asked for.
    """

    weights: tuple[Tensor, ...]
    penalties: tuple[tuple[Tensor, ...], ...]
    value_shares: tuple[tuple[Tensor, ...], ...]
    advantages: tuple[Tensor, ...]
    values: tuple[dict[str, Tensor], ...]
    empty: bool
    tokens: int
    kept: int
    metrics: dict[str, float]
    responses: tuple[tuple[Tensor, Tensor | None], ...] = ()
    off_policy: bool = False
    clauses: Clauses | None = None

    @property
    def asked_clauses(self) -> Clauses:
        """The clauses of a plan for which they were asked."""
        assert self.clauses is not None
        return self.clauses

    def of(self, table: TokenBatch, index: int | None = None) -> "Plan":
        """The plan of a table's rows, as a plan of one table.

        The rows are found in this order:

        1. by `index`, the position of the table in this plan;
        2. by the ids of the responses, if the table and this plan have ids: the table may hold any
           of the planned responses, in any order;
        3. by the table's own index;
        4. a plan of one table has only these rows.

        Raises:
            BatchError: the rows are not in this plan, or their place is not known.
        """
        if self.off_policy and table.old_logprobs is None:
            raise BatchError("the plan has old_logprobs; pass TokenBatch(old_logprobs=...), too")
        place = table.index if index is None else index
        place = 0 if place is None and len(self.weights) == 1 else place
        if place is not None and self._holds(table, place):
            return self._one(lambda columns: columns[place]) if len(self.weights) > 1 else self
        known = self.responses and all(ids is not None for _, ids in self.responses)
        if index is None and table.ids is not None and known:
            return self.joined.part(self._rows(table))
        raise BatchError(
            f"the plan was not made for this table of {len(table)} tokens, or its place is not "
            "known: pass TokenBatch(ids=...) to both, or loss(table, plan, index=...)"
        )

    def part(self, rows: Tensor, index: int = 0) -> "Plan":
        """The plan of some rows of one table, as a plan of one table.

        Divisors and counts stay those of the whole update. So the losses of parts add up to the
        loss of the whole, if each row is in one part.

        Args:
            rows: int [M], for example `TokenBatch.rows` of some responses.
            index: the position of the table in this plan.
        """
        return self._one(lambda columns: columns[index][rows])

    def _one(self, pick: Callable[[Sequence[Tensor]], Tensor]) -> "Plan":
        """A plan of one table; `pick` makes a column of it from the columns of all tables."""
        return replace(
            self,
            weights=(pick(self.weights),),
            penalties=(tuple(pick(shares) for shares in zip(*self.penalties, strict=True)),),
            value_shares=(tuple(pick(s) for s in zip(*self.value_shares, strict=True)),),
            advantages=(pick(self.advantages),),
            values=({text: pick([v[text] for v in self.values]) for text in self.values[0]},),
            responses=(),
            clauses=None,
        )

    @cached_property
    def joined(self) -> "Plan":
        """The plan of all tables as one table, with its clauses."""
        return replace(self._one(lambda columns: torch.cat(list(columns))), clauses=self.clauses)

    def _holds(self, table: TokenBatch, place: int) -> bool:
        """Whether the plan's table at this place has the same responses, as far as is known."""
        if not 0 <= place < len(self.weights):
            return False
        if not self.responses:
            return len(self.weights[place]) == len(table)
        pairs = zip(self.responses[place], responses_of(table), strict=True)
        return all(a is None or b is None or torch.equal(a, b) for a, b in pairs)

    def _rows(self, table: TokenBatch) -> Tensor:
        """The rows of the table's responses among the rows of all tables, found by ids."""
        left, spans = dict(self._spans), []
        lengths, ids = responses_of(table)
        assert ids is not None
        for identity, length in zip(ids.tolist(), lengths.tolist(), strict=True):
            span = left.pop(identity, None)
            if span is None or len(span) != length:
                who = f"response with id {identity} and {length} tokens"
                raise BatchError(f"the plan holds no {who}, or this table holds it twice")
            spans.append(torch.arange(span.start, span.stop))
        return torch.cat([torch.zeros(0, dtype=torch.int64), *spans]).to(table.logprobs.device)

    @cached_property
    def _spans(self) -> dict[int, range]:
        """The rows of each response among the rows of all tables, by its id."""
        spans: dict[int, range] = {}
        end = 0
        for lengths, ids in self.responses:
            assert ids is not None
            for identity, length in zip(ids.tolist(), lengths.tolist(), strict=True):
                if identity in spans:
                    raise BatchError(f"several responses of the plan have the id {identity}")
                spans[identity] = range(end, end := end + length)
        return spans


def responses_of(table: TokenBatch) -> tuple[Tensor, Tensor | None]:
    """The lengths and the ids of a table's responses, on the CPU."""
    return table.lengths.cpu(), None if table.ids is None else table.ids.cpu()
