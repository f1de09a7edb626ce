"""Rollouts of several rows count once, against loops over rollouts written here."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from ranks import on_ranks
from strategies import NAN, awkward_batch, objectives, rolled, tokens

from rlobj import BatchError, Clip, Objective, TokenBatch, load_preset, parse
from rlobj.objectives.advantages import LeaveOneOut, TurnReturn
from rlobj.objectives.divisors import FixedLength, SequenceMean, SequenceSum, TokenMean
from rlobj.objectives.frame import Frame
from rlobj.objectives.rules import Scope
from rlobj.objectives.statistics import SingleProcess

ROWS = [(7, 2, 0, 1.0), (7, 3, 0, 1.0), (4, 1, 0, 0.0), (9, 0, 0, 1.0), (5, 4, 1, NAN)]
ROWS += [(5, 1, 1, NAN), (2, 2, 1, 1.0), (7, 1, 0, 1.0), (3, 0, 1, 0.0), (3, 0, 1, 0.0)]
ROWS += [(1, 3, 1, 0.0)]
"""Rollout, tokens, group and reward of each row; 7 has three rows, 3 two empty ones."""


def batch_of(rows: list[Any] = ROWS, **columns: Any) -> TokenBatch:
    rollouts, lengths, groups, rewards = zip(*rows, strict=True)
    logprobs = -torch.arange(1, sum(lengths) + 1).double() / 7
    return TokenBatch(
        lengths=list(lengths),
        groups=list(groups),
        rollouts=list(rollouts),
        rewards=torch.tensor(rewards, dtype=torch.float64),
        logprobs=logprobs,
        entropy=-logprobs % 1,
        ids=torch.arange(len(rows)),
        **columns,
    )


BATCH = batch_of()


def by_rollout() -> dict[int, tuple[int, int, float]]:
    """The tokens, the group and the reward of each decided rollout."""
    found: dict[int, tuple[int, int, float]] = {}
    for rollout, size, group, reward in ROWS:
        if not math.isnan(reward):
            found[rollout] = (found.get(rollout, (0,))[0] + size, group, reward)
    return found


def of_tokens(values: dict[int, float]) -> list[float]:
    """The value of the rollout of each token; 0 where it is undecided."""
    return [values.get(rollout, 0.0) for rollout, size, _, _ in ROWS for _ in range(size)]


def group_of(group: int) -> list[int]:
    return [rollout for rollout, (_, other, _) in by_rollout().items() if other == group]


def test_advantages_compare_rollouts_and_not_rows() -> None:
    rewards = {rollout: reward for rollout, (_, _, reward) in by_rollout().items()}
    expected = {"group_normalized": {}, "leave_one_out": {}, "length_weighted": {}}
    for rollout, (_, group, reward) in by_rollout().items():
        of_group = [rewards[other] for other in group_of(group)]
        tokens_of = [by_rollout()[other][0] for other in group_of(group)]
        mean, std = statistics.mean(of_group), statistics.stdev(of_group)
        expected["group_normalized"][rollout] = (reward - mean) / (std + 1e-6)
        others = (sum(of_group) - reward) / (len(of_group) - 1)
        expected["leave_one_out"][rollout] = reward - others
        weighted = sum(n * r for n, r in zip(tokens_of, of_group, strict=True)) / sum(tokens_of)
        expected["length_weighted"][rollout] = reward - weighted
    for kind, values in expected.items():
        [table] = Objective(advantage=kind).with_advantages([BATCH])  # type: ignore[arg-type]
        assert table.advantages is not None
        assert table.advantages.tolist() == pytest.approx(of_tokens(values), abs=1e-14), kind


DIVISORS = [
    (SequenceMean(), lambda size: 4 * size),  # 7, 4, 2 and 1 have tokens
    (SequenceSum(), lambda size: 4),
    (FixedLength(length=9), lambda size: 36),
    (TokenMean(), lambda size: 12),
]


@pytest.mark.parametrize(("divisor", "expected"), DIVISORS, ids=lambda x: getattr(x, "kind", ""))
def test_divisors_count_rollouts(divisor: Any, expected: Any) -> None:
    weights = Objective(divisor=divisor).plan([BATCH]).weights[0]
    shares = {rollout: 1 / expected(n) for rollout, (n, _, _) in by_rollout().items() if n}
    assert weights.tolist() == pytest.approx(of_tokens(shares), abs=1e-15)


@pytest.mark.parametrize("kind", [SequenceMean, SequenceSum])
def test_a_divisor_of_rows_is_that_of_responses(kind: Any) -> None:
    of_rows = Objective(divisor=kind(of="row")).plan([BATCH]).weights[0]
    assert torch.equal(
        of_rows, Objective(divisor=kind()).plan([BATCH.replace(rollouts=None)]).weights[0]
    )
    assert not torch.equal(of_rows, Objective(divisor=kind()).plan([BATCH]).weights[0])


def test_dropped_tokens_of_one_row_change_the_rollouts_divisor() -> None:
    objective = Objective(divisor=SequenceMean(), drop="position < 1")  # type: ignore[arg-type]
    weights = objective.plan([BATCH]).weights[0]  # kept: 1 + 2 + 0 of rollout 7, 1 of 2, 2 of 1
    kept = {7: 3, 2: 1, 1: 2}
    position = BATCH.positions.tolist()
    expected = of_tokens({rollout: 1 / (3 * n) for rollout, n in kept.items()})
    assert weights.tolist() == pytest.approx(
        [x if p >= 1 else 0 for x, p in zip(expected, position, strict=True)]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "reward.mean()": [1, 1, 0, 0, 0.5],
        "reward.mean(by='group')": [2 / 3, 1 / 3],
        "reward.std(by='group')": [(1 / 3) ** 0.5, (1 / 3) ** 0.5],
        "(reward > 0).count()": [3],
        "(length >= 0).count(by='group')": [3],  # with the empty rollouts
        "rollout_rows.sum()": [9],
        "rollout_rows.mean(by='group')": [5 / 3, 4 / 3],
        "length.max()": [6],
        "reward.quantile(0.5, by='group', of='response')": [1, 0],
        "(length > 0).share(by='group')": [2 / 3],
    }.items(),
)
def test_a_statistic_of_what_a_rollout_has_counts_it_once(text: str, expected: list[float]) -> None:
    values = numbers(text, [BATCH])
    if text == "reward.mean()":
        expected = [statistics.mean(reward for _, _, reward in by_rollout().values())]
    assert sorted(set(values)) == pytest.approx(sorted(set(expected)))


def numbers(text: str, tables: list[TokenBatch], comm: Any = None) -> list[float]:
    """The value on each decided token of a rank."""
    read = dict.fromkeys(("logprobs", "entropy", "rewards"), "the test")
    frame = Frame(tables, read, comm or SingleProcess())
    expression: Any = parse(text)
    values = frame.rule(expression) if expression.is_rule else frame.number(expression, "the test")
    frame.check()
    return values[frame.decided].double().tolist()


def test_tokens_and_rows_are_populations_of_their_own() -> None:
    of_seven = torch.cat([BATCH.entropy[0:5], BATCH.entropy[13:14]])  # type: ignore[index]
    assert numbers("entropy.mean(by='rollout')", [BATCH])[0] == pytest.approx(
        float(of_seven.mean())
    )
    first = numbers("entropy.mean(by='response')", [BATCH])[0]
    assert first == pytest.approx(float(BATCH.entropy[:2].mean()))  # type: ignore[index]
    assert numbers("position.max(by='response')", [BATCH])[:5] == [1, 1, 2, 2, 2]
    means = numbers("entropy.mean(by='rollout').mean()", [BATCH])[0]
    expected = [
        of_seven.mean(),
        BATCH.entropy[5],
        BATCH.entropy[11:13].mean(),
        BATCH.entropy[14:].mean(),
    ]  # type: ignore[index]
    assert means == pytest.approx(float(torch.stack(expected).mean()))


def test_a_cut_of_rollouts_selects_all_their_rows_on_all_ranks() -> None:
    order = [[0, 2, 8, 10], [9, 1, 7, 6, 3, 4, 5]]
    tables = [BATCH.select(rows) for rows in order]
    for text in (
        "length.top(0.3, of='response')",
        "length.rank() + reward",
        "(reward > 0).sample(2, of='response')",
    ):
        whole = dict(zip(ids_of(BATCH), numbers(text, [BATCH]), strict=True))
        found = on_ranks(2, lambda at, text=text: numbers(text, [tables[at.rank]], at))
        for table, values in zip(tables, found, strict=True):
            assert values == [whole[place] for place in ids_of(table)], text


def ids_of(table: TokenBatch) -> list[tuple[int, int]]:
    """The row and the position of each decided token."""
    assert table.ids is not None
    rows = table.ids[table.responses].tolist()
    places = zip(rows, table.positions.tolist(), table.decided.tolist(), strict=True)
    return [(row, position) for row, position, decided in places if decided]


TURNS = [(0, 2, 0, 1.5), (0, 2, 0, 1.5), (1, 3, 0, 0.5), (2, 1, 0, 1.0), (0, 1, 0, 1.5)]
TURN, REWARD = [0, 1, 3, 4, 0, 1, 1, 0, 2], [0.25, 0.0, 0.5, 0.5, 0.5, 0, 0, 1.0, 0.25]


def test_returns_to_go_cross_the_rows_of_a_rollout() -> None:
    batch = batch_of(TURNS, turn=TURN, turn_reward=torch.tensor(REWARD).double())
    [table] = Objective(advantage=TurnReturn(discount=0.5)).with_advantages([batch])
    # returns of rollout 0 by turn: 0.4375, 0.375, 0.75, 0.75 (turn 3), 0.5; the others': 0.5, 0; 1
    returns = {0: [0.40625, 0.3125, 0.625, 0.75, 0.5], 1: [0.5, 0.0], 2: [1.0]}
    for t in (3, 2, 1, 0):
        rewards = [0.25, 0.0, 0.25, 0.5, 0.5]
        returns[0][t] = rewards[t] + 0.5 * returns[0][t + 1]
    last = {1: returns[1][-1], 2: returns[2][-1], 0: returns[0][-1]}

    def of(rollout: int, turn: int) -> float:
        own = returns[rollout][turn]
        others = [returns[x][turn] for x in returns if x != rollout and turn < len(returns[x])]
        others = others or [last[x] for x in returns if x != rollout]
        return own - statistics.mean(others)

    places = [(0, 0), (0, 1), (0, 3), (0, 4), (1, 0), (1, 1), (1, 1), (2, 0), (0, 2)]
    assert table.advantages is not None
    assert table.advantages.tolist() == pytest.approx([of(*place) for place in places], abs=1e-14)
    parts = [batch.select([4, 0]), batch.select([3]), batch.select([2, 1])]
    found = torch.cat(
        [t.advantages for t in Objective(advantage=TurnReturn(discount=0.5)).with_advantages(parts)]
    )  # type: ignore[misc]
    assert found.tolist() == pytest.approx([of(*places[i]) for i in (8, 0, 1, 7, 4, 5, 6, 2, 3)])


def test_a_turn_in_two_rows_of_a_rollout_is_refused() -> None:
    with pytest.raises(BatchError, match="'turn' is 1 in several rows of rollout 0"):
        batch_of(TURNS, turn=[0, 1, 1, 4, 0, 1, 1, 0, 2])
    turns = Objective(advantage=TurnReturn())
    with pytest.raises(BatchError, match="'turn' is 0 in several rows of rollout 7"):
        turns.plan([BATCH.select([0, 2]), BATCH.select([1, 7])])


def test_the_penalty_in_the_reward_adds_up_over_all_rows() -> None:
    gap = torch.arange(len(BATCH)).double() / 16
    batch = BATCH.replace(
        old_logprobs=BATCH.logprobs, ref_logprobs=(BATCH.logprobs - gap), entropy=None
    )
    objective = Objective(reward_kl=0.5, advantage=LeaveOneOut())  # type: ignore[arg-type]
    [table] = objective.with_advantages([batch])
    rewards = {rollout: reward for rollout, (_, _, reward) in by_rollout().items()}
    for rollout, value in zip(of_rows(), gap.tolist(), strict=True):
        if rollout in rewards:
            rewards[rollout] -= 0.5 * value
    expected = {}
    for rollout, (_, group, _) in by_rollout().items():
        others = [rewards[other] for other in group_of(group) if other != rollout]
        expected[rollout] = rewards[rollout] - statistics.mean(others)
    assert table.advantages is not None
    assert table.advantages.tolist() == pytest.approx(of_tokens(expected), abs=1e-14)


def of_rows() -> list[int]:
    """The rollout of each token."""
    return [rollout for rollout, size, _, _ in ROWS for _ in range(size)]


def test_agent_lightning_divides_by_rows_and_the_tokens_of_the_rollout() -> None:
    weights = load_preset("agent-lightning").objective.plan([BATCH]).weights[0]
    shares = {rollout: 1 / (9 * n) for rollout, (n, _, _) in by_rollout().items() if n}  # 9 decided
    assert weights.tolist() == pytest.approx(of_tokens(shares), abs=1e-15)


ONE_REWARD = [
    name
    for name, objective in objectives().items()
    if not (objective.advantage.decoupled or "reward(" in str(objective))
]


@pytest.mark.parametrize("name", sorted(ONE_REWARD))
def test_rollouts_of_one_row_change_nothing(name: str) -> None:
    objective, batch = objectives()[name], awkward_batch(3)
    batch = batch.replace(rewards=batch.rewards.clamp(min=0))  # type: ignore[union-attr]
    one, same = (
        objective.plan([table], objective.observe([table]))
        for table in (batch, batch.replace(rollouts=batch.ids))
    )
    assert torch.equal(one.weights[0], same.weights[0])
    assert torch.equal(one.advantages[0], same.advantages[0])
    assert one.metrics == same.metrics


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": [1.0, 0.0, 0.0]}, "'rewards' is 1.0 at response 0 and 0.0 at response 1"),
        ({"rewards": [1.0, NAN, 0.0]}, "'rewards' is 1.0 at response 0 and nan at response 1"),
        (
            {"groups": [0, 1, 1]},
            "'groups' is 0 at response 0 and 1 at response 1, rows of rollout 8",
        ),
        ({"rollouts": [8, 8]}, r"'rollouts' has shape \[2\], expected \[3\]"),
        ({"rollouts": [8, 8.5, 1]}, "must hold integers"),
    ],
)
def test_rows_of_a_rollout_that_differ_are_refused(changes: Any, message: str) -> None:
    table: Any = {"rewards": [1.0, 1.0, 0.0], "groups": [0, 0, 0], "rollouts": [8, 8, 1]}
    with pytest.raises(BatchError, match=message):
        tokens([1, 1, 1], [-1.0] * 3, **{**table, **changes})


def test_rows_that_differ_are_found_in_other_tables_and_with_several_rewards() -> None:
    tables = [BATCH.select([0, 2]), BATCH.select([1]).replace(rewards=[0.5])]
    with pytest.raises(BatchError, match=r"'rewards'.* at response 0 and .* at response 1"):
        Objective().plan(tables)
    credited = [table.replace(advantages=torch.ones(len(table.lengths))) for table in tables]
    with pytest.raises(BatchError, match=r"'rewards' is 1.0 at response 0 and 0.5 at response 1"):
        Objective().plan(credited)
    pairs = torch.tensor([[1.0, 0.0], [1.0, 2.0], [0.0, 0.0]]).double()
    with pytest.raises(BatchError, match=r"\[1.0, 0.0\] at response 0 and \[1.0, 2.0\] at"):
        tokens([1, 1, 1], [-1.0] * 3, rewards=pairs, rollouts=torch.tensor([8, 8, 1]))


def test_several_rewards_of_one_sum_must_be_the_same_in_all_tables() -> None:
    names: Any = {"reward_names": ("a", "b"), "logprobs": -torch.ones(1).double()}
    one, other = (
        TokenBatch(lengths=[1], groups=[0], rollouts=[8], ids=[i], rewards=pair, **names)
        for i, pair in enumerate(([[1.0, 0.0]], [[0.0, 1.0]]))
    )
    with pytest.raises(
        BatchError, match=r"\[1.0, 0.0\] at response 0 and \[0.0, 1.0\] at response 1"
    ):
        Objective().plan([one, other])


def test_an_undecided_rollout_may_lack_other_rewards_in_each_row() -> None:
    pairs = torch.tensor([[1.0, NAN], [NAN, 2.0], [0.0, 1.0]]).double()
    batch = tokens([1, 1, 1], [-1.0] * 3, rewards=pairs, rollouts=torch.tensor([8, 8, 1]))
    assert Objective().plan([batch]).kept == 1


NO_REWARDS = [
    (Objective(shape=parse("entropy"), divisor=SequenceMean()), BATCH.replace(rewards=None)),
    (Objective(shape=parse("entropy"), divisor=SequenceMean()), BATCH),
    (Objective(divisor=SequenceMean()), BATCH.replace(advantages=torch.ones(11), rewards=None)),
]


@pytest.mark.parametrize(("objective", "batch"), NO_REWARDS)
def test_a_rank_without_tables_fits_rollouts_without_rewards(
    objective: Objective, batch: TokenBatch
) -> None:
    whole = objective.plan([batch]).weights[0]
    ranks = [[batch], []]
    plans = on_ranks(2, lambda at: objective.plan(ranks[at.rank], comm=at))
    assert torch.equal(plans[0].weights[0], whole)
    assert plans[1].weights == ()


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("turn_reward.suffix_sum(decay=0.5)", lambda turn, reward, after: reward + 0.5 * after),
        (
            "turn_reward.suffix_sum(decay=1 / (1 + turn))",
            lambda turn, reward, after: reward + after / (1 + turn),
        ),
        ("turn_reward.suffix_max()", lambda turn, reward, after: max(reward, after)),
    ],
)
def test_a_scan_over_turns_crosses_the_rows_of_a_rollout_on_all_ranks(text: str, step: Any) -> None:
    batch = batch_of(TURNS, turn=TURN, turn_reward=torch.tensor(REWARD).double())
    parts = [batch.select([4, 1]), batch.select([3, 0, 2])]
    expected = {}
    for rollout, rewards in {0: [0.25, 0, 0.25, 0.5, 0.5], 1: [0.5, 0], 2: [1.0]}.items():
        after = 0.0
        for turn, reward in reversed([*enumerate(rewards)]):
            expected[rollout, turn] = after = step(turn, reward, after)
    objective = Objective(shape=parse(text))
    plans = on_ranks(2, lambda at: objective.plan([parts[at.rank]], comm=at))
    for part, plan in zip(parts, plans, strict=True):
        assert part.rollouts is not None
        rollouts = part.rollouts[part.responses].tolist()
        values = [expected[row] for row in zip(rollouts, part.turn_numbers.tolist(), strict=True)]
        assert plan.advantages[0].tolist() == pytest.approx(values, abs=1e-15)


def test_a_column_of_rollouts_counts_them_once() -> None:
    buckets = torch.tensor([1, 1, 0, 0, 9, 9, 1, 1, 1, 1, 1])[:, None]
    batch = BATCH.replace(columns={"bucket": buckets})
    scope = Scope({"bucket": "rollout"})

    def value(text: str, tables: list[TokenBatch]) -> list[float]:
        frame = Frame(tables, dict.fromkeys(("rewards", "bucket"), ""), SingleProcess())
        number: Any = parse(text, scope)
        values = frame.number(number)
        frame.check()
        return values[frame.decided].tolist()

    assert value("bucket.mean()", [batch])[0] == pytest.approx((1 + 0 + 0 + 1 + 1 + 1) / 6)
    of_bucket = value("reward.mean(by='bucket')", [batch])
    assert of_bucket[0] == 1  # of group 0 rollout 7
    assert of_bucket[-1] == pytest.approx(1 / 3)  # of group 1 rollouts 2, 3 and 1
    objective = Objective(columns={"bucket": "rollout"}, keep="bucket > 0")
    ranks = [[batch], []]
    plans = on_ranks(2, lambda at: objective.plan(ranks[at.rank], comm=at))
    assert torch.equal(plans[0].weights[0], objective.plan([batch]).weights[0])
    wrong = batch.replace(columns={"bucket": torch.arange(11)[:, None]})
    with pytest.raises(BatchError, match="'bucket' has several values in a rollout"):
        value("bucket.mean()", [wrong.select([0, 2]), wrong.select([1])])


def test_a_sample_of_rollouts_needs_no_ids() -> None:
    batch = BATCH.replace(ids=None)
    objective = Objective(keep=parse("(reward >= 0).sample(2, of='response')"))
    parts = [BATCH.select([0, 2, 7]).replace(ids=None), BATCH.select([1, 3, 4, 5, 6, 8, 9, 10])]
    whole = objective.plan([batch])
    found = on_ranks(2, lambda at: objective.plan([parts[at.rank].replace(ids=None)], comm=at))
    assert found[0].kept == whole.kept


def test_agent_lightning_divides_alike_if_tokens_are_dropped() -> None:
    objective = load_preset("agent-lightning").objective.drop("position < 1")
    weights = objective.plan([BATCH]).weights[0]
    shares = {rollout: 1 / (9 * n) for rollout, (n, _, _) in by_rollout().items() if n}
    expected = zip(of_tokens(shares), BATCH.positions.tolist(), strict=True)
    assert weights.tolist() == pytest.approx([x if p >= 1 else 0 for x, p in expected], abs=1e-15)


def test_ratios_of_a_sequence_are_those_of_a_row() -> None:
    batch = BATCH.replace(old_logprobs=(BATCH.logprobs - BATCH.positions / 10).clamp(max=0))
    objective = Objective(surrogate=Clip(low=9, high=9, ratio="sequence"))
    one = objective(batch)
    rows = objective(batch.replace(rollouts=None))
    assert one.metrics["policy/ratio"] == rows.metrics["policy/ratio"]
    assert one.extremes == rows.extremes


def test_tables_keep_their_rollouts() -> None:
    batch = rolled(awkward_batch(2), 2)
    parts = batch.split(5)
    assert torch.equal(TokenBatch.concat(parts).rollouts, batch.rollouts)  # type: ignore[arg-type]
    padded = TokenBatch.from_padded(
        torch.ones(3, 2),
        -torch.ones(3, 2),
        groups=[0, 0, 0],
        rollouts=[4, 4, 5],
        rewards=[1.0, 1, 0],
    )
    assert padded.rollouts is not None
    assert padded.rollouts.tolist() == [4, 4, 5]
