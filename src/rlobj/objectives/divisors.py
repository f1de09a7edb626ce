"""Divisors Z: the loss is Σ_t values/Z_t over the tokens of an update.

Each divisor returns Z_t for every row of this rank's tables. Counts include all micro-batches and
all ranks of the update. `over` selects the counted tokens: those that the objective keeps, or all.
i is a rollout: B is the number of rollouts with at least one counted token, and |o_i| its tokens in
all its rows. With `of: row` every row counts, as in trainers that average rows.
"""

from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor

from rlobj.base.errors import ConfigError
from rlobj.base.primitives import Primitive
from rlobj.objectives import statistics
from rlobj.objectives.rollouts import Rollouts
from rlobj.objectives.statistics import Comm
from rlobj.objectives.tokens import TokenBatch


class Divisor(Primitive):
    """Base class of divisors, Z."""

    over: Literal["kept", "all"] = "kept"
    """count the tokens that are kept, or all tokens of the update"""

    def __call__(self, counted: Tensor, table: TokenBatch, comm: Comm) -> Tensor:
        """Z_t, float64 [N]; 0 if nothing is counted.

        Args:
            counted: bool [N], the tokens to count.
            table: this rank's tokens of the update.
            comm: the process group.
        """
        raise NotImplementedError

    def resolve(self, max_tokens: int) -> "Divisor":
        """This divisor with the number of tokens in place of "max_tokens"."""
        return self

    def mean(self, values: Tensor, counted: Tensor, table: TokenBatch, comm: Comm) -> float:
        """Σ values/Z_t over the counted tokens of the update, in any order; nan if none counts."""
        if statistics.count(counted, comm) == 0:
            return float("nan")
        divisor = self(counted, table, comm)[counted]
        return statistics.exact_sum(values[counted].double() / divisor, comm)


DivisorField = Annotated[SerializeAsAny[Divisor], BeforeValidator(Divisor.build)]


class _OfRollouts(Divisor):
    """A divisor with |o_i| and B."""

    of: Literal["rollout", "row"] = "rollout"
    """i is a rollout, or one of its rows; the same where each response is a rollout"""

    def _sizes(self, counted: Tensor, table: TokenBatch, comm: Comm) -> tuple[Tensor, int]:
        """The number of counted tokens of each token's i, [N], and B."""
        tokens = table.sum_by_response(counted.double())
        if table.rollouts is None or self.of == "row":
            return table.spread(tokens), statistics.count(tokens > 0, comm)
        rollouts = Rollouts.of(table.rollouts, comm)
        sums = rollouts.sum(tokens)
        return table.spread(sums[rollouts.number]), int((sums > 0).sum())


class TokenMean(Divisor):
    """Z = number of counted tokens. Source: DAPO, arXiv:2503.14476 eq. 8."""

    def __call__(self, counted: Tensor, table: TokenBatch, comm: Comm) -> Tensor:
        total = torch.tensor(statistics.count(counted, comm), dtype=torch.float64)
        return total.to(counted.device).expand(counted.shape)


class SequenceMean(_OfRollouts):
    """Z_t = B·|o_i|: the mean over responses of their token means.

    Source: GRPO, arXiv:2402.03300 eq. 3.
    """

    def __call__(self, counted: Tensor, table: TokenBatch, comm: Comm) -> Tensor:
        tokens, number = self._sizes(counted, table, comm)
        return number * tokens


class SequenceSum(_OfRollouts):
    """Z = B: the mean over responses of their token sums. Source: LUSPO; REINFORCE."""

    def __call__(self, counted: Tensor, table: TokenBatch, comm: Comm) -> Tensor:
        tokens, number = self._sizes(counted, table, comm)
        return torch.full_like(tokens, float(number))


class FixedLength(_OfRollouts):
    """Z = B·L with a constant length L, tokens.

    L = "max_tokens" is the run's `sampling.rollout_tokens`, or `sampling.max_tokens` without it.
    Source: Dr.GRPO, arXiv:2503.20783.
    """

    length: Annotated[int, Field(ge=1)] | Literal["max_tokens"]
    """L, tokens; "max_tokens" = sampling.rollout_tokens of the run, else sampling.max_tokens"""

    def __call__(self, counted: Tensor, table: TokenBatch, comm: Comm) -> Tensor:
        if self.length == "max_tokens":
            raise ConfigError("length is 'max_tokens'; use objective.resolve(max_tokens=1024)")
        tokens, number = self._sizes(counted, table, comm)
        return torch.full_like(tokens, float(number * self.length))

    def resolve(self, max_tokens: int) -> "FixedLength":
        number = max_tokens if self.length == "max_tokens" else self.length
        return FixedLength(length=number, over=self.over, of=self.of)


class PromptMean(Divisor):
    """Z_t = P·(counted tokens of the group): the mean over prompts of their token means.

    P is the number of groups with at least one counted token. The tokens of a group may be in
    several micro-batches and on several ranks.
    """

    def __call__(self, counted: Tensor, table: TokenBatch, comm: Comm) -> Tensor:
        tokens = table.sum_by_response(counted.double())
        member, groups = statistics.numbered(table.groups, comm)
        total = comm.sum(tokens.new_zeros(groups).index_add(0, member, tokens))
        prompts = int((total > 0).sum())
        return table.spread(prompts * total[member])
