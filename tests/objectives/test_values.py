"""Advantages and losses of a value, against loops."""

import re
from typing import Any

import pytest
import torch
from ranks import on_ranks
from strategies import awkward_batch, rolled, tokens
from torch import Tensor

from rlobj import ClippedSquared, Gae, Objective, TokenBatch, ValueLoss, functional
from rlobj.base.errors import BatchError, ConfigError
from rlobj.objectives.trials import problems


def loop(
    rewards: Tensor, values: Tensor, lengths: Tensor, gamma: float, lam: Tensor, end: Tensor
) -> list[float]:
    """The sum over k of (γλ)^k·δ_{t+k}, term by term."""
    advantages, start = [], 0
    for response, length in enumerate(lengths.tolist()):
        after = [*values[start : start + length].tolist(), float(end[response])]
        deltas = [
            float(rewards[start + t]) + gamma * after[t + 1] - after[t] for t in range(length)
        ]
        decay = gamma * float(lam[response])
        for t in range(length):
            advantages.append(sum(decay**k * delta for k, delta in enumerate(deltas[t:])))
        start += length
    return advantages


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0, "by response"])
@pytest.mark.parametrize("cut", [False, True])
def test_advantages_are_the_sum_of_discounted_differences(seed, gamma, lam, cut):
    torch.manual_seed(seed)
    lengths = torch.randint(0, 7, (seed % 6,))
    rewards, values = torch.randn(2, int(lengths.sum()), dtype=torch.float64)
    shares = torch.rand(len(lengths), dtype=torch.float64)
    shares = shares if lam == "by response" else torch.full_like(shares, lam)
    end = torch.randn(len(lengths), dtype=torch.float64) * cut
    share = shares if lam == "by response" else lam
    advantages, returns = functional.gae(
        rewards, values, lengths, gamma, share, end if cut else None
    )
    expected = loop(rewards, values, lengths, gamma, shares, end)
    assert advantages.tolist() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(returns, advantages + values)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(BatchError, match=r"rewards \[2\] and values \[3\]; expected \[3\]"):
        functional.gae(torch.zeros(2), torch.zeros(3), torch.tensor([3]))
    with pytest.raises(BatchError, match=r"lam is \[2\]; expected \[1\]"):
        functional.gae(torch.zeros(3), torch.zeros(3), torch.tensor([3]), 1.0, torch.zeros(2))


@pytest.mark.parametrize(
    ("lengths", "settings", "message"),
    [
        (1, {}, r"lengths is 1; expected \[B\], each 0 or more"),
        ([[1]], {}, r"lengths is \[\[1\]\]; expected"),
        ([2, -1], {}, r"lengths is \[2, -1\]; expected"),
        ([1], {"gamma": 1.5}, r"gamma is 1.5 and lam 0.95; expected numbers from 0 to 1"),
        ([1, 0], {"lam": [0.5, torch.nan]}, r"lam \[0.5, nan\]; expected numbers from 0 to 1"),
    ],
)
def test_lengths_and_discounts_out_of_range_are_named(lengths, settings, message):
    with pytest.raises(BatchError, match=message):
        functional.gae([1.0], [0.5], lengths, **settings)


def test_the_loss_of_a_value_is_half_the_larger_squared_error():
    new, old, returns = torch.tensor([[1.0, 0.0, 0.5], [0.0, 0.0, 0.4], [2.0, 2.0, 0.0]])
    loss = functional.value_loss(new, old, returns, clip=0.2)
    assert loss.tolist() == pytest.approx([0.5 * 1.8**2, 0.5 * 4, 0.5 * 0.25])
    assert functional.value_loss(new, old, returns).tolist() == pytest.approx([0.5, 2, 0.125])


def test_an_objective_adds_the_loss_of_its_value():
    values, new = torch.rand(2, 5, dtype=torch.float64)
    table = TokenBatch(
        lengths=torch.tensor([2, 0, 3]),
        groups=torch.tensor([0, 1, 2]),
        logprobs=-torch.rand(5, dtype=torch.float64),
        rewards=torch.tensor([1.0, torch.nan, 0.5]),
        columns={"critic_value": values, "critic_new_value": new.requires_grad_()},
    )
    settings: dict[str, Any] = {"lam": "1 - 1 / (0.8 * length)", "lam_value": 1.0, "whiten": False}
    objective = Objective(
        advantage=Gae(**settings), values=(ClippedSquared(clip=None, coefficient=0.5),)
    )
    plan = objective.plan([table])
    rewards = torch.tensor([0, 1.0, 0, 0, 0.5])
    lam = 1 - 1 / (0.8 * torch.tensor([2.0, 1.0, 3.0], dtype=torch.float64))
    expected = loop(rewards, values, table.lengths, 1.0, lam, torch.zeros(3))
    assert plan.advantages[0].tolist() == pytest.approx(expected)
    output = objective.value_loss(table, plan)
    goal = torch.tensor([1.0, 1, 0.5, 0.5, 0.5])
    assert output.loss.item() == pytest.approx(0.25 * (new - goal).square().mean().item())
    [gradient] = torch.autograd.grad(output.loss, new)
    assert gradient.tolist() == pytest.approx((0.5 * (new - goal) / 5).tolist())
    whole = objective.loss(table, plan).loss
    alone = objective.of_policy.loss(table, plan).loss
    assert whole.item() == pytest.approx((alone + output.loss).item())


def valued(seed: int, kind: str) -> TokenBatch:
    """An awkward batch with values and bootstraps: of responses, their turns, or rollouts."""
    batch = awkward_batch(seed, groups=5)
    batch = rolled(batch, seed) if kind.startswith("rollouts") else batch
    if kind in ("responses", "rollouts"):
        batch = batch.replace(turn=None, turn_reward=None)
    random = torch.Generator().manual_seed(seed)
    draw = {"dtype": torch.float64, "generator": random}
    values, bootstraps = torch.rand(len(batch), **draw), torch.rand(len(batch.lengths), **draw)
    return batch.with_columns(
        {
            "critic_value": values.masked_fill(~batch.decided, torch.nan),
            "critic_bootstrap": bootstraps * (bootstraps > 0.5),
            "critic_new_value": torch.rand(len(batch), **draw),
        }
    )


def paths(batch: TokenBatch) -> list[list[int]]:
    """The tokens of each decided rollout, in the order in which the policy wrote them."""
    rows: dict[int, list[tuple[int, int, int]]] = {}
    names = batch.ids if batch.rollouts is None else batch.rollouts
    for token, row in enumerate(batch.responses.tolist()):
        if bool(batch.decided_responses[row]):
            turn = 0 if batch.turn is None else int(batch.turn[token])
            rows.setdefault(int(names[row]), []).append((turn, int(batch.ids[row]), token))
    return [[token for _, _, token in sorted(path)] for path in rows.values()]


def walked(batch: TokenBatch, gamma: float, lam: Any, beta: float = 0.0) -> list[float]:
    """A of each token, from the last token of each path to its first; 0 where it is undecided."""
    advantages, values = [0.0] * len(batch), batch.columns["critic_value"].tolist()
    kl = beta * (batch.old_logprobs - batch.ref_logprobs)
    for path in paths(batch):
        after, ahead = float(batch.columns["critic_bootstrap"][batch.responses[path[-1]]]), 0.0
        for place in reversed(range(len(path))):
            token, row = path[place], int(batch.responses[path[place]])
            last = place == len(path) - 1
            reward = float(batch.rewards[row]) if last else 0.0
            if batch.turn_reward is not None:
                new = last or batch.turn[path[place + 1]] != batch.turn[token]
                new = new or batch.responses[path[place + 1]] != row
                reward = float(batch.turn_reward[token]) if new else 0.0
            share = lam if isinstance(lam, float) else 1 - 1 / (1 + len(path))
            ahead = reward - kl[token] + gamma * after - values[token] + gamma * share * ahead
            advantages[token], after, ahead = float(ahead), values[token], float(ahead)
    return advantages


KINDS = ("responses", "turns", "rollouts", "rollouts by turn")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0, "1 - 1 / (1 + length)"])
@pytest.mark.parametrize("seed", range(3))
def test_advantages_follow_a_rollout_through_all_its_rows(kind, lam, seed):
    batch = valued(seed, kind)
    settings: dict[str, Any] = {"lam": lam, "gamma": 0.97, "truncated": "bootstrap"}
    objective = Objective(advantage=Gae(**settings, whiten=False), reward_kl=0.5)  # type: ignore[arg-type]
    [table] = objective.with_advantages([batch])
    expected = walked(batch, 0.97, lam, 0.5)
    assert table.advantages.tolist() == pytest.approx(expected, abs=1e-12)
    returns = batch.columns["critic_value"].nan_to_num(0) + torch.tensor(
        expected, dtype=torch.float64
    )
    assert table.columns["critic_return"].tolist() == pytest.approx(returns.tolist(), abs=1e-12)
    [white] = Objective(advantage=Gae(**settings), reward_kl=0.5).with_advantages([batch])  # type: ignore[arg-type]
    known = torch.tensor(expected, dtype=torch.float64)[batch.decided]
    whitened = torch.zeros(len(batch)).double()
    whitened[batch.decided] = (known - known.mean()) / (known.var() + 1e-8).sqrt()
    assert white.advantages.tolist() == pytest.approx(whitened.tolist(), abs=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_rows_of_a_rollout_may_be_anywhere(kind, ranks):
    batch = valued(4, kind)
    lams = {"lam": "1 - 1 / (1 + length)", "lam_value": 0.9}
    term = {"kind": "clipped_squared", "coefficient": "length", "where": "critic_value < 0.7"}
    objective = Objective(
        advantage={"kind": "gae", "gamma": 0.97, "truncated": "bootstrap", **lams},  # type: ignore[arg-type]
        values=[term],  # type: ignore[arg-type]
    )
    whole = objective.plan([batch])
    random = torch.Generator().manual_seed(ranks)
    order = torch.randperm(len(batch.lengths), generator=random).tensor_split(2 * ranks)
    tables = [[batch.select(part) for part in order[rank::ranks]] for rank in range(ranks)]
    tables[-1] += [batch.select([])]
    plans = on_ranks(ranks, lambda comm: objective.plan(tables[comm.rank], comm=comm))
    loss = sum(
        objective.value_loss(table, plan, index).loss
        for plan, of_rank in zip(plans, tables, strict=True)
        for index, table in enumerate(of_rank)
    )
    assert float(loss) == pytest.approx(float(objective.value_loss(batch, whole).loss), rel=1e-12)
    for plan, of_rank in zip(plans, tables, strict=True):
        assert plan.metrics == whole.metrics
        for index, table in enumerate(of_rank):
            part = whole.of(table)
            assert torch.equal(plan.advantages[index], part.advantages[0])
            assert torch.equal(plan.value_shares[index][0], part.value_shares[0][0])
            assert torch.equal(plan.values[index]["critic_return"], part.values[0]["critic_return"])


def test_an_update_without_a_decided_token_has_metrics_that_are_numbers():
    batch = valued(0, "responses")
    plan = VALUED.plan([batch.replace(rewards=torch.full_like(batch.rewards, torch.nan))])
    assert plan.metrics["value/mean"] == plan.metrics["value/explained_variance"] == 0


def test_rows_without_turns_need_ids_for_their_order():
    batch = tokens([1], [-1.0], rewards=[1.0], rollouts=torch.tensor([0]))
    batch = batch.with_columns({"critic_value": torch.zeros(1).double()})

    def work(comm: Any) -> None:
        with pytest.raises(BatchError, match=r"rows of rollouts need turn=\[...\] or ids=\[...\]"):
            Objective(advantage=Gae()).plan([batch], comm=comm)

    on_ranks(2, work)


def test_the_columns_of_an_update_are_in_all_tables_or_in_none():
    batch = valued(0, "turns").split(2)
    objective = Objective(advantage=Gae(truncated="bootstrap"))
    for name in ("turn", "turn_reward", "advantages"):
        column = torch.zeros_like(batch[0].logprobs) if name == "advantages" else None
        changes = {name: column} | ({"turn_reward": None} if name == "turn" else {})
        tables = [batch[0].replace(**changes), batch[1]]

        def work(comm: Any, tables=tables, name=name) -> None:
            of_rank = [*tables[comm.rank : comm.rank + 1]]  # the third rank has no table
            message = f"column '{name}' is in some tables of the update, not in all"
            with pytest.raises(BatchError, match=message):
                objective.with_advantages(of_rank, comm)

        on_ranks(3, work)


def test_a_value_that_is_absent_on_one_rank_stops_all():
    with_value, without = valued(0, "responses").split(2)
    columns = {n: c for n, c in without.columns.items() if n != "critic_value"}
    tables = [with_value, without.replace(columns=columns)]
    messages = ["another rank", r"needs the column 'critic_value'; pass TokenBatch\(columns={'crit"]

    def work(comm: Any) -> None:
        with pytest.raises(BatchError, match=messages[comm.rank]):
            Objective(advantage=Gae()).plan([tables[comm.rank]], comm=comm)

    on_ranks(2, work)


def small(**columns: Any) -> TokenBatch:
    """Two responses of two and one tokens, with values."""
    batch = tokens([2, 1], [-1.0, -2.0, -3.0], rewards=[1.0, 0.0], **columns)
    values = {"value": [0.5, 0.25, 0.5], "new_value": [0.75, 0.5, 0.25]}
    return batch.with_columns(
        {f"critic_{name}": torch.tensor(v).double() for name, v in values.items()}
    )


VALUED = Objective(advantage=Gae(), values=(ClippedSquared(),))


def test_returns_beside_given_advantages_are_asked_for():
    batch = small(advantages=[1.0, 1.0, 0.0])
    with pytest.raises(BatchError, match=r"pass TokenBatch\(columns=\{'critic_return': ...\}\)"):
        VALUED.plan([batch])
    assert VALUED.of_policy.plan([batch]).advantages[0].tolist() == [1.0, 1.0, 0.0]
    batch = batch.with_columns({"critic_return": torch.ones(3)})
    plan = VALUED.plan([batch])
    expected = (0.25**2 + 0.5**2 + 0.75**2) / 6  # the clip is not the larger of any
    near = (0.7 - 1) ** 2, (0.45 - 1) ** 2, (0.3 - 1) ** 2
    larger = sum(max(a, b) for a, b in zip((0.25**2, 0.5**2, 0.75**2), near, strict=True)) / 6
    assert VALUED.value_loss(batch, plan).loss.item() == pytest.approx(larger)
    assert larger > expected


def test_a_value_of_each_response_is_no_value_of_each_token():
    table = small()
    one = table.with_columns({"critic_new_value": torch.zeros(2).double()})
    message = r"column 'critic_new_value' is \[2\]; clipped_squared reads .* of each token, \[3\]"
    for loss in (VALUED.loss, VALUED.value_loss):
        with pytest.raises(BatchError, match=message):
            loss(one, VALUED.plan([table]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value": "reference"}, "advantage.value: 'reference' is a policy's score; use {value:"),
        ({"value": "judge"}, "advantage.value: 'judge' is a policy's score"),
        ({"coefficient": -0.5}, "values: expected a coefficient of 0 or more, got -0.5"),
    ],
)
def test_what_no_value_can_be_is_refused(settings, message):
    advantage = {"kind": "gae", "value": settings.get("value", "critic")}
    terms = [{"kind": "clipped_squared", "value": "critic", **settings}]
    with pytest.raises(ConfigError, match=re.escape(message)):
        Objective(advantage=advantage, values=terms, scores=["judge"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lam", "message"),
    [
        ("entropy", "has a value per token; take one value per response"),
        ("turn_position.mean(by='turn')", "has a value per turn"),
        ("advantage.mean()", "reads 'advantage', which advantages come before"),
        ("(covariance > 1).share()", "reads 'covariance'"),
        ("gradient_norm.max(by='response')", "reads 'gradient_norm'"),
        ("critic_return.mean(by='response')", "reads 'critic_return'"),
        ("A1", "reads 'A1'"),
    ],
)
@pytest.mark.parametrize("field", ["lam", "lam_value"])
def test_what_a_lambda_cannot_read_is_refused(field, lam, message):
    gate = {"A1": {"kind": "gate", "target": 1, "on": 2}}
    with pytest.raises(ConfigError, match=re.escape(message)):
        Objective(advantage={"kind": "gae", field: lam}, controllers=gate)  # type: ignore[arg-type]


def test_a_lambda_outside_0_to_1_names_the_response():
    objective = Objective(advantage=Gae(lam="1 - 1 / (0.05 * length)"))
    message = (
        r"advantage.lam '1 - 1 / \(0.05 \* length\)' is not a number from 0 to 1 at row 0 \(re"
    )
    with pytest.raises(BatchError, match=message):
        objective.plan([small()])
    lam = "critic_value.mean(by='response')"  # a rule may read V
    objective = Objective(advantage={"kind": "gae", "lam": lam, "whiten": False})  # type: ignore[arg-type]
    first = 0.25 - 0.5 + 0.375 * (1 - 0.25)
    assert objective.plan([small()]).advantages[0].tolist() == pytest.approx([first, 0.75, -0.5])


def test_a_lambda_outside_0_to_1_on_one_rank_stops_all():
    tables = small().split(2)  # of two tokens and of one
    objective = Objective(advantage=Gae(lam="2 * (2 - length)"))
    messages = ["another rank", r"lam '2 \* \(2 - length\)' is not a number from 0 to 1"]

    def work(comm: Any) -> None:
        with pytest.raises(BatchError, match=messages[comm.rank]):
            objective.plan([tables[comm.rank]], comm=comm)

    on_ranks(2, work)


def test_values_that_are_not_finite_are_named():
    table = small()
    table.columns["critic_value"][1] = torch.inf  # type: ignore[index]
    with pytest.raises(BatchError, match="'critic_value' is inf at row 1"):
        VALUED.plan([table])
    table = small()
    plan = VALUED.plan([table])
    new = torch.tensor([0.0, 0.0, torch.nan]).double()
    table = table.with_columns({"critic_new_value": new})
    for loss in (VALUED.loss, VALUED.value_loss):
        with pytest.raises(BatchError, match="'critic_new_value' is nan at row 2"):
            loss(table, plan)
        assert loss(table, plan, check=False).loss.isnan()


@pytest.mark.parametrize("clip", [0.2, "0.1 + 0.1 * critic_value", None])
def test_the_gradient_of_a_value_is_that_of_finite_differences(clip):
    batch = valued(2, "turns")
    term = {"kind": "clipped_squared", "clip": clip, "coefficient": "length", "where": "prob < 0.7"}
    objective = Objective(advantage=Gae(truncated="bootstrap"), values=[term])  # type: ignore[arg-type]
    plan = objective.plan([batch])

    def loss(new: Tensor) -> Tensor:
        return objective.value_loss(batch.with_columns({"critic_new_value": new}), plan).loss

    new = batch.columns["critic_new_value"].clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, new, eps=1e-7, atol=1e-7)
    policy = batch.logprobs.clone().requires_grad_()
    whole = objective.loss(batch.replace(logprobs=policy), plan).loss
    alone = objective.of_policy.loss(batch.replace(logprobs=policy), plan).loss
    pair = [torch.autograd.grad(x, policy)[0] for x in (whole, alone)]
    assert torch.equal(*pair)


def test_without_a_value_advantages_are_rewards():
    batch = valued(1, "responses")
    for value in (0.0, 0.25):
        constant = torch.full_like(batch.logprobs, value)
        objective = Objective(advantage=Gae(lam=1.0, whiten=False))
        plan = objective.plan([batch.with_columns({"critic_value": constant})])
        expected = batch.spread(batch.rewards - value).nan_to_num(0.0)
        assert plan.advantages[0].tolist() == pytest.approx(expected.tolist(), abs=1e-14)


def test_rows_without_a_gradient_of_the_policy_are_left_out_of_it():
    objective = Objective(
        advantage=Gae(whiten=False), values=(ClippedSquared(),), drop="reward < 1"
    )  # type: ignore[arg-type]
    table = small()
    plan = objective.plan([table])
    assert objective.responses_with_gradient(table, plan).tolist() == [True, False]
    assert objective.tokens_with_gradient(table, plan).tolist() == [True, True, False]
    columns = {n: c for n, c in table.columns.items() if n != "critic_new_value"}
    without = table.replace(columns=columns)  # the policy's own pass has no new values
    assert objective.tokens_with_gradient(without, plan).tolist() == [True, True, False]
    assert [share.tolist() for share in plan.value_shares[0]] == [pytest.approx([1 / 3] * 3)]


def test_the_divisor_of_a_value_knows_the_longest_response():
    term = {"kind": "clipped_squared", "divisor": {"kind": "fixed_length", "length": "max_tokens"}}
    objective = Objective(advantage=Gae(), values=[term]).resolve(4)  # type: ignore[arg-type]
    assert objective.plan([small()]).value_shares[0][0].tolist() == pytest.approx([1 / 8] * 3)


def test_an_objective_with_a_value_is_read_from_what_it_writes():
    settings = {"kind": "gae", "value": "judge", "lam": "maximum(0, 1 - 1 / (0.4 * length))"}
    terms = [{"kind": "clipped_squared", "value": "judge", "where": "judge_value < 0.5"}]
    objective = Objective(advantage=settings, values=terms, drop="judge_return > 2")  # type: ignore[arg-type]
    again = Objective(**objective.model_dump(mode="json", by_alias=True))
    assert again.model_dump() == objective.model_dump()
    text = str(objective.explain(1))
    assert "+ (1/Z_v1) Σ (1.0)·P_v1" in text
    assert "advantage.lam: maximum(0, 1 - 1 / (0.4 * length))\n    rollout by rollout" in text
    assert "plan reads judge_value, rewards" in text
    assert "with one update per rollout V = V_old" in text
    assert "V_old, judge_value, from the start of the step; V is judge_new_value" in text
    assert "whiten=True" in text
    assert "whiten=False" in str(Objective(advantage=Gae(whiten=False)))
    assert "V = V_old" not in str(objective.explain(1, value_updates=2))


def test_padded_tables_take_values():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    padded = torch.arange(6).view(2, 3) / 8
    own = {"critic_value": padded, "critic_bootstrap": torch.tensor([0.0, 0.5])}
    table = TokenBatch.from_padded(
        mask, -1 - padded, rewards=[1.0, 0.0], groups=[0, 1], columns=own
    )
    [table] = Objective(advantage=Gae(truncated="bootstrap", whiten=False)).with_advantages([table])
    expected = 0.125 + 0.95 * (1 - 0.125), 1 - 0.125, 0.5 - 0.375
    assert table.to_padded(table.advantages)[mask.bool()].tolist() == pytest.approx([*expected])


def test_a_bootstrap_is_of_responses_also_if_there_are_as_many_tokens():
    batch = tokens([0, 2], [-1.0, -1.0], rewards=[0.0, 1.0], ids=[0, 1])
    batch = batch.with_columns({"critic_value": torch.zeros(2).double()})
    batch = batch.with_columns({"critic_bootstrap": torch.tensor([0.0, 0.5]).double()})
    objective = Objective(advantage=Gae(truncated="bootstrap", lam=1.0, whiten=False))
    for tables in ([batch], batch.split(2)):
        plan = objective.plan(tables)
        assert torch.cat(plan.advantages).tolist() == [1.5, 1.5]


class Same(Gae):
    pass


class OfMean(ValueLoss):
    def __call__(self, terms: Any) -> Tensor:
        new, _ = (terms.table.column(name, "it") for name in self.needs())
        return (new - new.mean()).square()


class Huber(ValueLoss):
    def __call__(self, terms: Any) -> Tensor:
        new, _ = (terms.table.column(name, "it") for name in self.needs())
        distance = (new - terms.values[f"{self.value}_return"]).abs()
        return torch.where(distance < 1, distance.square() / 2, distance - 0.5)


class Backwards(Huber):
    def __call__(self, terms: Any) -> Tensor:
        loss = super().__call__(terms)
        if loss.requires_grad:
            loss.register_hook(torch.neg)
        return loss


def test_a_loss_of_a_value_of_ones_own_is_tried():
    with pytest.raises(ConfigError, match="a class of one's own cannot be a Gae"):
        Objective(advantage=Same())
    assert not list(problems(Objective(advantage=Gae(), values=(Huber(),))))
    [text] = problems(Objective(advantage=Gae(), values=(OfMean(),)))
    assert re.search(
        r"OfMean\(\) is .* if each response is in a micro-batch.*\n.*test_values.py", text
    )
    [text] = problems(Objective(advantage=Gae(), values=(Backwards(),)))
    assert "by finite differences of the loss" in text


def test_advantages_take_lists_and_whole_numbers():
    advantages, returns = functional.gae([0, 1, 1], [0, 1, 0], [2, 1], lam=[1, 0.5])
    assert advantages.dtype == torch.float32
    assert advantages.tolist() == [1.0, 0.0, 1.0]
    assert returns.tolist() == [1.0, 1.0, 1.0]
    for lengths in ([], [0, 0]):
        empty, _ = functional.gae(
            [], torch.zeros(0).double(), lengths, bootstrap=[1.0] * len(lengths)
        )
        assert empty.dtype == torch.float64
        assert empty.shape == (0,)


def test_long_responses_are_summed_without_a_loss_of_digits():
    lengths, random = torch.tensor([5000, 0, 64, 129]), torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 5193, generator=random, dtype=torch.float64)
    shares = torch.tensor([0.999, 0.5, 1.0, 0.0], dtype=torch.float64)
    advantages, _ = functional.gae(rewards, values, lengths, 1.0, shares)
    start = 0
    for length, share in zip(lengths.tolist(), shares.tolist(), strict=True):
        part, ahead, after = slice(start, start + length), 0.0, 0.0
        expected = []
        for reward, value in zip(
            rewards[part].flip(0).tolist(), values[part].flip(0).tolist(), strict=True
        ):
            ahead = reward + after - value + share * ahead
            expected.append(ahead)
            after = value
        alone, _ = functional.gae(rewards[part], values[part], [length], 1.0, share)
        assert torch.equal(advantages[part], alone)
        assert advantages[part].flip(0).tolist() == pytest.approx(expected, abs=1e-9)
        start += length
