"""Expression-valued settings, shaped advantages, own columns, custom rules and lists of phases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from strategies import NAN, awkward_batch, loss_and_gradients, tokens
from torch import Tensor

from rlobj import (
    BatchError,
    Cispo,
    Clip,
    ClippedRatio,
    ConfigError,
    CustomRule,
    Objective,
    SoftGate,
    TokenBatch,
    Truncate,
    Vespo,
    advantage,
    column,
    entropy,
    parse,
    prob,
)
from rlobj.objectives.surrogates import DppoTv, GeometricMean

BATCH = awkward_batch(seed=5)
SETTINGS: dict[Any, dict[str, float]] = {
    Clip: {"low": 0.2, "high": 0.28, "dual": 3.0},
    Cispo: {"max": 1.2, "min": 0.9},
    ClippedRatio: {"max": 1.2, "min": 0.9},
    SoftGate: {"tau_pos": 1.5, "tau_neg": 0.5},
    GeometricMean: {"eps": 0.1},
    DppoTv: {"low": 0.05, "high": 0.1, "cap": 1.1},
    Vespo: {"k_pos": 1.0, "lambda_pos": 2.0, "k_neg": 0.5, "lambda_neg": 1.5},
    Truncate: {"cap": 1.1},
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_an_expression_with_one_value_equals_the_number(kind: Any) -> None:
    field = "mismatch" if kind is Truncate else "surrogate"
    texts = {key: f"{value} + 0 * entropy" for key, value in SETTINGS[kind].items()}
    written, plain = (
        loss_and_gradients(Objective(**{field: kind(**values)}), BATCH)
        for values in (texts, SETTINGS[kind])
    )
    torch.testing.assert_close(written, plain)


def test_shape_changes_the_surrogates_advantage_but_not_the_rules() -> None:
    base = Objective(surrogate="reinforce").drop(advantage > 0)
    plan, flipped = base.plan([BATCH]), base.replace(shape="-2 * advantage").plan([BATCH])
    assert torch.equal(plan.weights[0], flipped.weights[0])
    torch.testing.assert_close(flipped.advantages[0], -2 * plan.advantages[0])


def test_a_name_that_is_read_twice_is_evaluated_and_described_once() -> None:
    """Written out, the last name would be 2^31 columns."""
    let = {"n0": "prob", **{f"n{i}": f"n{i - 1} + n{i - 1}" for i in range(1, 32)}}
    settings: Any = {"drop": "(n31 > 1e9) & (advantage > 0)", "shape": "advantage * n30 / 1e9"}
    bomb = Objective(let=let, **settings)
    plain = Objective(let={"n31": "2147483648 * prob", "n30": "1073741824 * prob"}, **settings)
    assert torch.equal(bomb(BATCH).loss, plain(BATCH).loss)
    assert bomb.needs == plain.needs
    assert len(str(bomb.explain())) < 5000
    assert len(repr(bomb)) < 5000
    for update in (bomb, bomb.but(keep="n31 > 0")):
        found = update.plan([BATCH], clauses=True).clauses
        assert found is not None
        assert all(len(clause) < 5000 for _, clause in found.causes)
    again = Objective(let=let, **settings)
    assert bomb == again
    assert hash(bomb.drop_rule) == hash(again.drop_rule)
    assert bomb != bomb.but(let={**let, "n7": "n6 * 2"})
    assert bomb.let["n3"].written_out().count("prob") == 8  # type: ignore[attr-defined]
    assert bomb.let["n31"].written_out() == "n31"  # type: ignore[attr-defined]


def test_own_columns_follow_their_responses() -> None:
    columns = {"stage": [5.0, 6, 7, 8], "level": [1, 2, 3]}
    batch = tokens([3, 0, 1], [-1.0, -2.0, -3.0, -4.0], columns=columns)
    parts = batch.split(3)
    assert [part.columns["stage"].tolist() for part in parts] == [[5, 6, 7], [], [8]]
    assert TokenBatch.concat(parts).columns["level"].tolist() == [1, 2, 3]
    assert batch.select([2, 0]).columns["stage"].tolist() == [8, 5, 6, 7]
    mask = torch.tensor([[1, 1], [1, 0]])
    own = {"reward_turn": mask * 2.0, "x": [3, 4]}  # a name that begins as those of rewards
    padded = TokenBatch.from_padded(mask, mask * -1.0, columns=own)
    assert padded.columns["reward_turn"].tolist() == [2, 2, 2]
    assert padded.columns["x"].tolist() == [3, 4]
    with pytest.raises(BatchError, match="a column of its own: old_logprobs="):
        batch.replace(columns={"old_logprobs": [-2.0] * 4})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": ["stage"], "keep": "stag > 0"}, "unknown name 'stag'. Did you mean 'stage'"),
        ({"keep": "stage > 0"}, "unknown name 'stage'"),
        ({"keep": column("stage") > 0}, "keep reads unknown 'stage'"),
        ({"columns": ["entropy"]}, "expected new names such as 'stage' in lower case"),
        ({"columns": "stage"}, "columns: expected names, .stage., or levels"),
        ({"drop": prob == 0}, "got 'False'"),
        ({"surrogate": {"kind": "clip", "high": "entropyy"}}, "unknown name 'entropyy'. Did you"),
        ({"surrogate": {"kind": "clip", "high": "entropy > 1"}}, "expected a number"),
        ({"surrogate": {"kind": "clip", "high": True}}, "expected a number >= 0 or an expression"),
        (
            {"drop": f"custom('{__name__}:Isolated', treshold=1)"},
            "unexpected keyword",
        ),
        (
            {"drop": {"kind": "custom", "target": f"{__name__}:Isolated", "limit": 1}},
            "unexpected keyword argument 'limit'",
        ),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Objective(**settings)


@dataclass(frozen=True)
class Isolated(CustomRule):
    """The only token of its response with a probability below the threshold."""

    threshold: float = 0.1

    def reads(self) -> tuple[Any, ...]:
        return (prob,)

    def select(self, frame: Any) -> Tensor:
        rare = frame.number(prob) < self.threshold
        return rare & frame.table.spread(frame.table.sum_by_response(rare.double()) == 1)


def test_a_custom_rule_has_a_text_and_composes() -> None:
    rule = (advantage > 0) & Isolated(0.05)
    assert str(rule) == f"(advantage > 0) & custom('{__name__}:Isolated', threshold=0.05)"
    assert parse(str(rule)) == rule
    written = {"kind": "custom", "target": f"{__name__}:Isolated", "threshold": 0.05}
    assert Objective(drop=written).drop_rule == Isolated(0.05)
    assert "logprobs" in Objective(drop=rule).needs.plan
    assert "only token of its response" in str(Objective(drop=rule).explain())


@dataclass(frozen=True)
class Both(CustomRule):
    rule: Any = None

    def select(self, frame: Any) -> Tensor:
        return frame.rule(self.rule)


@pytest.mark.parametrize(
    ("custom", "text"),
    [
        (Isolated(), "(prob < 0.1) & ((prob < 0.1).count(by='response') < 2)"),
        (Both(prob < 0.1), "prob < 0.1"),
    ],
)
def test_a_custom_rule_equals_the_same_rule_in_the_language(custom: Any, text: str) -> None:
    plans = [Objective().drop(rule).plan([BATCH]) for rule in (custom, text)]
    assert torch.equal(plans[0].weights[0], plans[1].weights[0])
    assert parse(str(custom)) == custom
    assert Objective(**Objective(drop=custom).model_dump(by_alias=True)).drop_rule == custom


def test_a_custom_rule_of_a_file_equals_itself_after_it_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "my_rules.py"
    path.write_text(
        "from dataclasses import dataclass\nfrom rlobj import CustomRule\n"
        "@dataclass(frozen=True)\nclass Mine(CustomRule):\n    limit: float = 1.0\n"
    )
    objective = Objective(drop={"kind": "custom", "target": f"{path}:Mine", "limit": 2})
    assert parse(str(objective.drop_rule)) == objective.drop_rule
    assert Objective(**objective.model_dump(by_alias=True)) == objective


@pytest.mark.parametrize(
    ("found", "shown"), [(torch.ones(3), r"torch.float32 \[3\]"), (None, ".*NoneType.*")]
)
def test_a_custom_rule_must_return_one_value_per_token(found: Any, shown: str) -> None:
    @dataclass(frozen=True)
    class Wrong(CustomRule):
        def select(self, frame: Any) -> Any:
            return found

    with pytest.raises(BatchError, match=rf"Wrong.select returned {shown}, expected a tensor"):
        Objective(drop=Wrong()).plan([BATCH])


def test_a_custom_rule_that_does_not_say_what_it_reads_is_refused() -> None:
    @dataclass(frozen=True)
    class Silent(CustomRule):
        def select(self, frame: Any) -> Tensor:
            return frame.number(entropy) > 1

    with pytest.raises(BatchError, match="asks for 'entropy', which its `reads` does not return"):
        Objective(surrogate="reinforce", drop=Silent()).plan([BATCH])


def test_phases_of_several_splits_partition_the_tokens() -> None:
    objective = Objective(surrogate="unclipped").split(prob < 0.1).split(entropy > 1)
    first, second, rest = (phase.plan([BATCH]).weights[0] != 0 for phase in objective.phases)
    whole = Objective(surrogate="unclipped").plan([BATCH]).weights[0] != 0
    rare, uncertain = BATCH.logprobs.exp() < 0.1, BATCH.column("entropy", "") > 1
    assert torch.equal(first, whole & rare)
    assert torch.equal(second, whole & ~rare & uncertain)
    assert torch.equal(rest, whole & ~rare & ~uncertain)


@pytest.mark.parametrize("rule", ["entropy > entropy.mean({})", "entropy.rank({}) > 0.5"])
def test_tokens_on_which_a_split_is_undefined_are_in_the_last_phase(rule: str) -> None:
    objective = Objective(surrogate="unclipped").split(rule.format("within=prob > 2"))

    first, rest = (phase.plan([BATCH]).weights[0] for phase in objective.phases)
    assert not first.any()
    assert torch.equal(rest, Objective(surrogate="unclipped").plan([BATCH]).weights[0])


def test_a_list_of_splits_is_written_as_a_list() -> None:
    objective = Objective(split=["prob < 0.1", "entropy > 1"])
    assert objective == Objective().split(prob < 0.1).split(entropy > 1)
    assert Objective(split="prob < 0.1") == Objective().split(prob < 0.1)
    assert Objective(split=None) == Objective()


def test_the_groups_deviation_normalizes_as_the_advantage_does() -> None:
    generator = torch.Generator().manual_seed(2)
    lengths, groups = [3, 1, 0, 2, 4, 2, 1], [5, 5, 5, 5, 2, 2, 9]  # an empty response; one alone
    rewards = [1.0, 0.0, 0.5, NAN, 0.25, 0.25, 3.0]
    logprobs = (-torch.rand(13, generator=generator, dtype=torch.float64)).tolist()
    batch = tokens(lengths, logprobs, groups=groups, rewards=rewards)
    std = "reward.std(by='group')"
    own = f"(reward - reward.mean(by='group')) / ({std} + 1e-6)"
    alone = f"when(length.count(by='group') < 2, reward / (1 + 1e-6), {own})"  # it has no baseline
    losses = []
    for settings in ({}, {"shape": alone.replace("length", "(length >= 0)")}):
        logprobs = batch.logprobs.clone().requires_grad_()
        output = Objective(**settings)(batch.replace(logprobs=logprobs))
        losses += [torch.cat([output.loss[None], *torch.autograd.grad(output.loss, logprobs)])]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
    held = Objective(keep=f"{std} > 0").plan([batch]).weights[0] != 0
    assert held.tolist() == [True] * 4 + [False] * 9  # equal rewards, and one reward
    assert str(parse("entropy.std(by='response', within=prob < 0.5)")).startswith("entropy.std(by")


RANKED = tokens(
    [3, 1, 0, 2],
    [-1.0] * 6,
    groups=[7, 7, 7, 3],
    advantages=[1.0, 1.0, 1.0, -1.0, 1.0, 1.0],
    entropy=[0.5, 0.25, 0.5, 0.5, 2.0, -0.0],
    rewards=[1.0, 0.0, 0.0, NAN],
)
"""Six tokens of two groups; the last response is undecided."""


def test_a_rank_is_undefined_outside_of_its_population() -> None:
    rank = parse("entropy.rank(within=advantage > 0)")
    assert Objective(keep=~(rank < 2)).plan([RANKED]).kept == 0  # undefined at row 3
    message = r"shape '.*' has no value: its population is empty at row 3"
    with pytest.raises(BatchError, match=message):
        Objective(shape=rank).plan([RANKED])
    with pytest.raises(BatchError, match=r"'log.entropy - 0.5.' is NaN or infinite at row 0"):
        Objective(keep="log(entropy - 0.5).rank() > 0.5").plan([RANKED])
    both = parse("length.rank(by='group') + prob.rank(within=entropy > 1)")
    [[_, _, words]] = Objective(shape=both).explain().rules
    assert "length.rank(by='group'): over each group's n rollouts" in words
    assert "over the update's n tokens with entropy > 1" in words
