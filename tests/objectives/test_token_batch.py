"""TokenBatch: columns, errors, splitting, joining, and padded tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import NAN, awkward_batch, fitting, leaf, objectives, tokens

from rlobj import BatchError, Objective, TokenBatch

LOGPROBS = ("logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "proxy_logprobs")
COLUMNS = (
    *("lengths", "groups", "ids", "rewards", "advantages", *LOGPROBS),
    *("entropy", "old_entropy", "collision", "old_collision", "turn", "turn_reward"),
)
TWO: dict[str, Any] = {"lengths": [2, 1], "groups": [0, 0], "logprobs": [-1.0, -2.0, -3.0]}


def same(left: TokenBatch, right: TokenBatch) -> None:
    for name in COLUMNS:
        a, b = getattr(left, name), getattr(right, name)
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_advantages_per_response_become_advantages_per_token() -> None:
    batch = tokens([2, 1], [-1.0] * 3, advantages=[5.0, 7.0])
    assert batch.advantages.tolist() == [5, 5, 7]
    mask, zeros = torch.tensor([[1, 1], [1, 0]]), torch.zeros(2, 2)
    for advantages in ([5.0, 7.0], [[5.0, 5], [7, 9]]):
        padded = TokenBatch.from_padded(mask, zeros, advantages=torch.tensor(advantages))
        assert padded.advantages.tolist() == [5, 5, 7]  # type: ignore[union-attr]
    with pytest.raises(BatchError, match="lengths follow from the mask"):
        TokenBatch.from_padded(mask, zeros, lengths=[2, 1])
    assert batch.replace(advantages=[1.0, 2.0, 3.0]).advantages.tolist() == [1, 2, 3]  # type: ignore[union-attr]


def test_split_and_concat_keep_advantages_per_token_if_each_response_has_one() -> None:
    """[N] must not be read as [B] if a part has as many tokens as responses."""
    batch = tokens([0, 2, 3], [-1.0] * 5, advantages=[1.0, 2.0, 3.0, 4.0, 5.0])
    parts = batch.split([2, 1])
    assert parts[0].advantages.tolist() == [1, 2]  # type: ignore[union-attr]
    assert parts[0].replace(index=7).advantages.tolist() == [1, 2]  # type: ignore[union-attr]
    assert TokenBatch.concat(parts).advantages.tolist() == [1, 2, 3, 4, 5]  # type: ignore[union-attr]


def test_defaults_are_those_of_an_on_policy_table() -> None:
    batch = tokens([1], [-0.5], entropy=[0.25], collision=[0.5])
    policy = batch.replace(logprobs=torch.tensor([-0.5], requires_grad=True))
    assert not policy.column("old_logprobs", "me").requires_grad
    old = {"old_logprobs": -0.5, "old_entropy": 0.25, "old_collision": 0.5}
    assert {name: batch.column(name, "me").item() for name in old} == old
    for name in ("old_entropy", "old_collision"):
        with pytest.raises(BatchError, match=f"gate needs the column '{name}'"):
            batch.replace(old_logprobs=[-0.5]).column(name, "gate")


@given(st.integers(0, 9), st.integers(1, 70))
def test_concat_is_the_inverse_of_split(seed: int, parts: int) -> None:
    batch = leaf(awkward_batch(seed, groups=4))
    tables = batch.split(parts)
    assert [table.index for table in tables] == list(range(parts))
    sizes = [len(table.lengths) for table in tables]
    assert max(sizes) - min(sizes) <= 1
    same(TokenBatch.concat(tables), batch)
    same(TokenBatch.concat(batch.split(sizes[::-1])), batch)
    TokenBatch.concat(tables).logprobs.nan_to_num().sum().backward()
    assert batch.logprobs.grad[batch.decided].tolist() == [1.0] * int(batch.decided.sum())


@pytest.mark.parametrize(
    ("use", "message"),
    [
        *((lambda batch, size=size: batch.split(size), "split") for size in (0, [1, 1], [6, -1])),
        (
            lambda batch: TokenBatch.concat([batch.replace(entropy=[1.0] * 5), batch]),
            "column 'entropy' is in some tables and not in all",
        ),
        (lambda batch: batch.replace(entropies=[1.0] * 5), "'entropies'. Did you mean 'entropy'"),
        (lambda batch: batch.to_padded(batch.logprobs[:2]), r"expects \[5\], got \[2\]"),
    ],
)
def test_a_wrong_use_of_a_table_is_refused(use: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        use(tokens([1] * 5, [-1.0] * 5))


@given(st.data())
def test_to_padded_restores_the_positions_of_from_padded(data: st.DataObject) -> None:
    """The mask may have holes (tool output), empty rows, or no rows."""
    height, width = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 6))
    bits = data.draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
    mask = torch.tensor(bits, dtype=torch.bool).reshape(height, width)
    padded = torch.arange(height * width, dtype=torch.float64).reshape(height, width) - 99
    columns = {"rewards": torch.zeros(height), "groups": torch.zeros(height)}
    batch = TokenBatch.from_padded(mask, padded, entropy=-padded, **columns)
    assert batch.lengths.tolist() == mask.sum(1).tolist()
    expected = torch.where(mask, padded, 7.0)
    assert batch.to_padded(batch.logprobs, fill=7.0).tolist() == expected.tolist()
    if height:
        tables = batch.split(2)
        again = torch.cat([table.to_padded(table.logprobs, fill=7.0) for table in tables])
        assert again.tolist() == expected.tolist()
        whole = TokenBatch.concat(tables)
        assert whole.to_padded(whole.logprobs, fill=7.0).tolist() == expected.tolist()


def test_to_padded_aligns_a_table_without_mask_to_the_left() -> None:
    batch = tokens([1, 0, 2], [-1.0, -2.0, -3.0])
    assert batch.to_padded(batch.logprobs).tolist() == [[-1, 0], [0, 0], [-2, -3]]


def two_rewards(**columns: Any) -> TokenBatch:
    rewards = torch.tensor([[1.0, 0.5], [0.0, NAN], [NAN, 1.0], [2.0, -1.0]], dtype=torch.float64)
    given = {"reward_names": ("right", "format"), "reward_weights": (1.0, 0.25), **columns}
    return tokens([2, 1, 1, 0], [-1.0] * 4, rewards=rewards, **given)


def test_reward_is_the_weighted_sum_or_one_of_the_rewards_by_name() -> None:
    """A response with one undecided reward is undecided, also if the reward has no weight."""
    table, unweighted = two_rewards(), two_rewards(reward_weights=(1, 0))
    assert str(table.reward().tolist()) == "[1.125, nan, nan, 1.75]"
    assert str(table.reward("format").tolist()) == "[0.5, nan, 1.0, -1.0]"
    assert two_rewards(reward_weights=None).reward()[3] == 1.0
    assert unweighted.reward()[3] == 2.0
    assert unweighted.reward("format")[3] == -1.0
    assert table.decided.tolist() == unweighted.decided.tolist() == [True, True, False, False]
    one = tokens([1, 1], [-1.0] * 2, rewards=[0.1, 0.2], reward_names=("right",))
    assert one.reward("right").tolist() == one.reward().tolist() == [0.1, 0.2]


def test_several_rewards_pass_through_split_select_concat_replace_and_from_padded() -> None:
    table = two_rewards()
    names = ("groups", "rewards", "reward_names", "reward_weights")
    columns = {name: getattr(table, name) for name in names}
    padded = TokenBatch.from_padded(torch.ones(4, 2), torch.zeros(4, 2), **columns)
    parts = [*table.split([1, 0, 2, 1]), table.select([3]), table.replace(index=4), padded]
    for part in parts:
        assert (part.reward_names, part.reward_weights) == (("right", "format"), (1.0, 0.25))
    together = TokenBatch.concat(parts[:4])
    same(together, table.replace(ids=together.ids))
    assert parts[4].reward("format").tolist() == [-1.0]
    assert padded.reward().nan_to_num().tolist() == table.reward().nan_to_num().tolist()


def test_an_unknown_reward_is_refused_with_the_known_names() -> None:
    with pytest.raises(BatchError, match=r"no reward 'formal'\. Did you mean 'format'"):
        two_rewards().reward("formal")
    with pytest.raises(BatchError, match="no reward 'format'"):
        two_rewards(reward_names=None).reward("format")
    with pytest.raises(BatchError, match="needs the column 'rewards'"):
        tokens([1], [-1.0]).reward()
    with pytest.raises(BatchError, match="differ in reward_names"):
        TokenBatch.concat([two_rewards(), two_rewards(reward_names=("right", "length"))])


@pytest.mark.parametrize("name", sorted(objectives()))
def test_an_undecided_response_has_the_same_result_as_an_absent_one(name: str) -> None:
    """Removing it does not change weights, loss or gradient, whatever its values are."""
    objective = objectives()[name]
    whole = fitting(objective, awkward_batch(3))
    lone = torch.zeros(len(whole.lengths), dtype=torch.bool)
    lone[4:8] = True  # a group of several with one decided member is no group of one
    some = whole.select([i for i in range(len(lone)) if not lone[i]])
    decided = some.decided_responses.nonzero().squeeze(1).tolist()
    with_them, without = leaf(some), leaf(some.select(decided))
    outputs = [objective(table) for table in (with_them, without)]
    for output in outputs:
        output.loss.backward()
    rows = with_them.decided
    assert rows.sum() < len(rows)
    assert outputs[0].weights[rows].tolist() == outputs[1].weights.tolist()
    assert outputs[0].weights[~rows].count_nonzero() == 0
    gradient = with_them.logprobs.grad
    assert gradient[~rows].tolist() == [0.0] * int((~rows).sum())
    torch.testing.assert_close(gradient[rows], without.logprobs.grad, rtol=0, atol=0)
    torch.testing.assert_close(outputs[0].loss, outputs[1].loss, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", sorted(objectives()))
def test_an_update_with_no_decided_response_is_empty(name: str) -> None:
    objective = objectives()[name]
    needed = {*objective.needs.plan, *objective.needs.loss, "old_entropy"}
    own = {*objective.columns, *(f"{score}_logprob" for score in objective.scores)}
    own |= objective.divergences.keys()
    own |= {column for column in needed if column.startswith(f"{objective.critic}_")}
    empty = dict.fromkeys(needed - {"rewards", "logprobs", "turn", *own}, [NAN] * 3)
    table = leaf(tokens([2, 1], [NAN] * 3, rewards=[NAN, NAN], ids=[0, 1]))
    table = table.replace(**empty, columns={key: torch.full((3,), NAN) for key in own})
    table = fitting(objective, table)
    plan = objective.plan([table], objective.observe([table]))
    output = objective.loss(table, plan)
    output.loss.backward()
    assert plan.empty
    assert output.loss.item() == 0
    assert table.logprobs.grad.tolist() == [0.0] * 3  # type: ignore[union-attr]
    assert all(torch.isfinite(value).all() for value in output.metrics.values())


def test_what_reads_one_reward_reads_the_weighted_sum_of_several() -> None:
    """Advantages, the column `reward` and undecided responses are those of the sum."""
    objective = Objective(keep="reward > 0.5", reward_kl=0.1)
    several = two_rewards(ref_logprobs=[-2.0, -1.5, -1.0, -1.0])
    several = several.replace(groups=torch.tensor([0, 1, 1, 0]))
    one = several.replace(rewards=several.reward(), reward_names=None, reward_weights=None)
    plans = [objective.plan([table]) for table in (several, one)]
    assert plans[0].advantages[0].tolist() == plans[1].advantages[0].tolist()
    assert plans[0].weights[0].tolist() == plans[1].weights[0].tolist()
    assert plans[0].kept == 2


TWICE = {"rewards": torch.zeros(2, 2)}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"entropy": [1.0]}, r"column 'entropy' has shape \[1\], expected \[3\]"),
        ({"advantages": [1.0] * 4}, r"'advantages' has shape \[4\], expected \[2\] or \[3\]"),
        ({"rewards": [1.0, float("inf")]}, "column 'rewards' has an infinite reward"),
        ({**TWICE, "reward_names": ["right"]}, r"reward_names is \('right',\); expected 2"),
        ({**TWICE, "reward_names": "ab"}, "reward_names is 'ab'; expected a list"),
        ({"rewards": [1.0, 1j]}, "column 'rewards' has complex numbers"),
        ({"columns": {"stage": [1, 1j, 2]}}, "column 'stage' has complex numbers"),
        ({**TWICE, "reward_names": ["right", "right"]}, "reward_names must differ"),
        ({**TWICE, "reward_weights": [1.0]}, "reward_weights is .*; expected 2"),
        ({"lengths": [4, -1]}, "column 'lengths' is .*each 0 or more"),
        ({"lengths": [2.5, 0.5]}, "column 'lengths' must hold integers"),
        ({"logprobs": [1, 2, 3]}, "column 'logprobs' must be float"),
        ({"groups": "ab"}, "column 'groups' is 'ab', not numbers"),
        ({"groups": [0, NAN]}, "'groups' must hold integers, got nan"),
        ({"ids": [0, 2**70]}, r"column 'ids' is \[0, 1180591620717411303424\]"),
        ({"rewards": [[1.0, 0.5], [1.0]]}, "column 'rewards' is .*not numbers"),
        ({"logprobs": [-1.0, None, -3.0]}, r"column 'logprobs' is \[-1.0, None, -3.0\], not"),
        ({"columns": {"stage": [1, "x", 2]}}, "column 'stage' is .*not numbers"),
        ({"columns": {5: [1, 2, 3]}}, "columns is"),
        ({"columns": None}, "columns is None; expected names"),
        ({"rewards": [1, 0], "reward_weights": (NAN,)}, "reward_weights must be finite"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_column_is_refused_with_its_name_and_row(columns: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        TokenBatch(**{**TWO, **columns})


PADDED: dict[str, Any] = {"mask": [[1, 1], [1, 0]], "logprobs": [[-1.0, -2.0], [-3.0, 0]]}


@pytest.mark.parametrize("name", LOGPROBS)
def test_a_log_prob_above_zero_is_refused_with_column_and_row(name: str) -> None:
    with pytest.raises(BatchError, match=rf"'{name}' is 0.002 at row 2 \(response 1, token 0\)"):
        TokenBatch(**{**TWO, name: [-1.0, NAN if name == "sampler_logprobs" else -1.0, 0.002]})
    padded = torch.tensor([[-1.0, 9.0], [0.5, 9.0]])  # 9.0 is padding
    columns: Any = {"logprobs": -torch.ones(2, 2), name: padded}
    with pytest.raises(BatchError, match=f"'{name}' is 0.5 at row 1"):
        TokenBatch.from_padded([[1, 0], [1, 0]], **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", LOGPROBS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_log_prob_that_rounding_lifts_above_zero_is_zero(name: str, dtype: torch.dtype) -> None:
    given = torch.tensor([-1.0, 1e-3, 2e-7]).to(dtype).requires_grad_()
    column = getattr(TokenBatch(**{**TWO, name: given}), name)
    assert column.tolist() == [-1, 0, 0]
    column.sum().backward()
    assert given.grad.tolist() == [1, 1, 1]


def test_log_probs_of_undecided_responses_and_infinite_ones_are_not_refused() -> None:
    """The first are read by nobody; a trainer skips an update with the second."""
    batch = tokens([1, 1], [-1.0, 5.0], rewards=[1.0, NAN])
    assert batch.logprobs.tolist() == [-1, 5]
    assert tokens([1, 1], [-1.0, float("inf")]).logprobs.tolist() == [-1, float("inf")]


def test_padded_rewards_have_groups_and_advantages_need_none() -> None:
    batch = TokenBatch.from_padded(**PADDED, rewards=[1.0, 0], groups=[5, 7])
    assert batch.groups.tolist() == [5, 7]
    assert TokenBatch.from_padded(**PADDED, advantages=[1.0, 0]).groups.tolist() == [0, 0]
