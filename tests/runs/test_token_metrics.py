"""The metrics of an update's tokens, compared with sums written out and a softmax policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from ranks import on_ranks
from torch import Tensor

from rlobj import Clip, Objective, TokenBatch, load_preset
from rlobj.objectives.divisors import SequenceMean
from rlobj.objectives.statistics import Comm, SingleProcess
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.token_metrics import token_metrics

STAPO = load_preset("stapo").objective


class Softmax:
    """A policy with its own logits for each token: what the metrics say of it can be computed.

    Args:
        count: responses, in groups of four with rewards 0 and 1.
    """

    def __init__(self, count: int = 40, vocabulary: int = 7, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(0, 12, (count,), generator=random)
        size = (int(self.lengths.sum()), vocabulary)
        self.logits = 2 * torch.randn(size, generator=random, dtype=torch.float64)
        drawn = torch.multinomial(self.logits.softmax(-1), 1, generator=random)
        self.targets = drawn[:, 0]
        self.rewards = torch.randint(0, 2, (count,), generator=random).double()
        self.rewards[3] = math.nan

    def columns(self, logits: Tensor) -> dict[str, Tensor]:
        """log π, H, Σ π² and the entropy sensitivity, by their definitions."""
        logs = logits.log_softmax(-1)
        probs = logs.exp()
        own = logs.gather(-1, self.targets[:, None])[:, 0]
        entropy = -(probs * logs).sum(-1)
        spread = (probs**2 * (logs + entropy[:, None])).sum(-1)
        return {
            "logprobs": own,
            "entropy": entropy,
            "collision": (probs**2).sum(-1),
            "entropy_sensitivity": own.exp() * (own + entropy) - spread,
        }

    def table(self) -> TokenBatch:
        columns = self.columns(self.logits)
        count = len(self.lengths)
        return TokenBatch(
            lengths=self.lengths,
            groups=torch.arange(count) // 4,
            ids=torch.arange(count),
            rewards=self.rewards,
            **{name: columns[name] for name in ("logprobs", "entropy", "collision")},
        )

    def observed(
        self,
        objective: Objective,
        responses: Sequence[int] | None = None,
        comm: Comm | None = None,
        skip: Callable[[Tensor], Tensor] | None = None,
    ) -> ObservedUpdate:
        """The update on some of the responses; `skip` says which rows were not scored."""
        whole, columns = self.table(), self.columns(self.logits)
        chosen = list(range(len(self.lengths))) if responses is None else responses
        rows, table = whole.rows(chosen), whole.select(chosen)
        plan = objective.plan([table], comm=comm, clauses=True)
        kept = {name: column[rows].clone() for name, column in columns.items()}
        if skip is not None:
            for column in kept.values():
                column[skip(plan.weights[0] * plan.advantages[0])] = math.nan
        return ObservedUpdate(objective, {}, table, plan, [], **kept)


@pytest.mark.parametrize(
    "objective",
    [
        STAPO.drop("(advantage > 0) & (prob < 0.2)"),
        load_preset("20-entropy").objective,
        Objective(divisor=SequenceMean(), reweight="1 + entropy"),
        load_preset("ar-lopti").objective.phases[0],
    ],
    ids=["stapo", "20-entropy", "sequence-mean", "lopti"],
)
def test_the_metrics_are_the_sums_of_their_definitions(objective: Objective) -> None:
    policy = Softmax()
    observed = policy.observed(objective)
    found = token_metrics(observed, SingleProcess())
    assert observed.plan.clauses is not None
    rows = observed.plan.clauses.in_phase
    advantages, weights = observed.plan.advantages[0][rows], observed.plan.weights[0][rows]
    probs = observed.logprobs[rows].exp()
    norms = (weights * advantages).abs() * (1 - 2 * probs + observed.collision[rows]).sqrt()
    surprising = observed.entropy_sensitivity[rows] < 0
    n, total = len(norms), norms.sum()
    expected = {
        "advantage/positive_share": (advantages > 0).double().mean(),
        "advantage/negative_share": (advantages < 0).double().mean(),
        "advantage/positive_mean": advantages[advantages > 0].mean(),
        "advantage/negative_mean": advantages[advantages < 0].mean(),
        "gradient/positive_likely": norms[(advantages > 0) & ~surprising].sum() / total,
        "gradient/positive_surprising": norms[(advantages > 0) & surprising].sum() / total,
        "gradient/negative_likely": norms[(advantages < 0) & ~surprising].sum() / total,
        "gradient/negative_surprising": norms[(advantages < 0) & surprising].sum() / total,
        "tokens/dropped": (observed.plan.clauses.factor[rows] == 0).double().sum(),
        "tokens/unscored": 0.0,
    }
    clauses = observed.plan.clauses
    for effect in {effect for effect, _ in clauses.causes} - {"dropped"}:
        expected[f"tokens/{effect}"] = clauses.touched(effect)[rows].sum()
    expected["tokens/touched"] = (clauses.codes >= 0)[rows].sum()
    ordered = observed.entropy[rows].sort().values
    for percent in (5, 25, 50, 75, 95):
        expected[f"entropy/q{percent:02}"] = ordered[math.ceil(percent / 100 * n) - 1]
    predicted = found.pop("entropy/predicted_change")
    assert found == pytest.approx({name: float(x) for name, x in expected.items()}, rel=1e-6)
    products = weights * advantages * observed.entropy_sensitivity[rows]
    assert predicted == pytest.approx(-float(products.sum()), rel=1e-12)


def test_the_predicted_change_is_the_slope_of_the_entropy_along_the_gradient() -> None:
    """One small step along the gradient of the loss by the logits of a softmax policy."""
    policy = Softmax()
    objective = Objective(surrogate=Clip(), reweight="1 + entropy").drop("prob < 0.1")
    observed = policy.observed(objective)
    logits = policy.logits.clone().requires_grad_()
    columns = policy.columns(logits)
    table = observed.table.replace(logprobs=columns["logprobs"])
    objective.loss(table, observed.plan).loss.backward()
    assert logits.grad is not None
    step = 1e-4
    ends = [policy.columns(policy.logits - s * logits.grad)["entropy"] for s in (step, -step)]
    slope = float((ends[0] - ends[1]).sum()) / (2 * step)
    found = token_metrics(observed, SingleProcess())["entropy/predicted_change"]
    assert found == pytest.approx(slope, rel=1e-6)


def test_tokens_that_were_not_scored_are_counted_and_left_out() -> None:
    policy = Softmax()
    whole = policy.observed(STAPO)
    idle = policy.observed(STAPO, skip=lambda weighed: weighed == 0)
    found, every = (token_metrics(each, SingleProcess()) for each in (idle, whole))
    assert whole.plan.clauses is not None
    unscored = int((idle.logprobs.isnan() & whole.plan.clauses.in_phase).sum())
    assert 0 < unscored == found["tokens/unscored"]
    for name, value in every.items():
        if name.startswith(("gradient/", "advantage/", "entropy/predicted")):
            assert found[name] == value  # these tokens weigh nothing
    read = idle.entropy[~idle.logprobs.isnan() & whole.plan.clauses.in_phase].sort().values
    assert found["entropy/q50"] == pytest.approx(float(read[math.ceil(0.5 * len(read)) - 1]))


def test_an_update_without_tokens_has_no_shares() -> None:
    policy = Softmax()
    counts = {"tokens/dropped": 0.0, "tokens/touched": 0.0, "tokens/unscored": 0.0}
    assert token_metrics(policy.observed(STAPO, [3]), SingleProcess()) == counts
    nothing = policy.observed(STAPO, skip=lambda weighed: weighed == weighed)
    assert "entropy/q50" not in token_metrics(nothing, SingleProcess())


@pytest.mark.parametrize("preset", ["stapo", "grpo", "20-entropy", "ar-lopti"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_metrics_are_the_same_to_the_bit_on_any_ranks(preset: str, ranks: int) -> None:
    """Responses in random order; the last of three ranks has none."""
    policy, objective = Softmax(), load_preset(preset).objective.resolve(16).phases[0]
    idle: Callable[[Tensor], Tensor] = lambda weighed: weighed == 0  # noqa: E731
    expected = token_metrics(policy.observed(objective, skip=idle), SingleProcess())
    order = torch.randperm(40, generator=torch.Generator().manual_seed(ranks)).tolist()
    held = {1: [order], 2: [order[:13], order[13:]], 3: [order[:30], order[30:], []]}[ranks]

    def work(comm: Comm) -> dict[str, float]:
        return token_metrics(policy.observed(objective, held[comm.rank], comm, idle), comm)

    for found in on_ranks(ranks, work):
        assert found == expected
