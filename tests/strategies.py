"""Batches, objectives and expressions that several tests draw from."""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from rlobj import (
    CustomRule,
    Objective,
    TokenBatch,
    advantage,
    clip,
    column,
    covariance,
    entropy,
    exp,
    length,
    load_preset,
    log,
    logprob,
    maximum,
    minimum,
    old_entropy,
    old_logprob,
    parse,
    position,
    prob,
    ratio,
    reward,
    rollout_rows,
    sampler_known,
    sign,
    sqrt,
    staleness,
    surprisal,
    turn,
    turn_reward,
    when,
)
from rlobj.objectives import statistics
from rlobj.objectives.advantages import (
    Decoupled,
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
    TurnReturn,
)
from rlobj.objectives.controllers import AdaptiveGate, Gate
from rlobj.objectives.divisors import FixedLength, PromptMean, SequenceMean, SequenceSum
from rlobj.objectives.mismatch import Mask, Truncate
from rlobj.objectives.penalties import KL, EntropyBonus
from rlobj.objectives.rules import COLUMNS, Expr, Level
from rlobj.objectives.rules.nodes import (
    Constant,
    Controlled,
    NamedNumber,
    NamedReward,
    NamedRule,
)
from rlobj.objectives.surrogates import (
    Cispo,
    Clip,
    ClippedRatio,
    DppoTv,
    GeometricMean,
    SoftGate,
    Switch,
    Unclipped,
)
from rlobj.settings.presets import preset_names

NAN = float("nan")


def tokens(lengths: list[int], logprobs: list[float], **columns: Any) -> TokenBatch:
    """A small float64 batch, one group unless `groups` is given."""
    columns.setdefault("groups", [0] * len(lengths))
    columns["logprobs"] = logprobs
    for name, value in columns.items():
        if isinstance(value, list):
            integer = name in ("groups", "ids")
            columns[name] = torch.tensor(value, dtype=torch.int64 if integer else torch.float64)
    return TokenBatch(lengths=torch.tensor(lengths, dtype=torch.int64), **columns)


def awkward_batch(
    seed: int = 0, groups: int = 16, dtype: torch.dtype = torch.float64, longest: int = 24
) -> TokenBatch:
    """All columns, three or more groups of four, every special case of the tables.

    Numbers are coarse, so that cuts fall on ties. Responses are empty now and then, rewards are
    undecided, groups have equal rewards or fewer than two decided members, the last response is
    a group of one. Non-finite numbers stand on the undecided rows, where nobody may read them.
    """
    random = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float, step: float, size: int) -> Tensor:
        levels = round((high - low) / step) + 1
        places = torch.randint(levels, (size,), generator=random)
        return low + step * places.double()

    responses = 4 * groups + 1
    lengths = torch.randint(1, longest + 1, (responses,), generator=random)
    lengths[torch.rand(responses, generator=random) < 0.1] = 0
    rewards = draw(-1, 1, 0.5, responses)
    rewards[torch.rand(responses, generator=random) < 0.1] = NAN
    rewards[:4] = 1.0  # no signal
    rewards[4:7] = NAN  # one decided member
    rewards[8:12] = torch.tensor([1.0, 0.0, 0.0, 1.0])
    total = int(lengths.sum())
    old = draw(-8, 0, 0.25, total)
    columns = {
        "logprobs": (old + draw(-0.5, 0.5, 0.125, total)).clamp(max=-0.015625),
        "old_logprobs": old,
        "entropy": draw(0, 3, 0.125, total),
        "old_entropy": draw(0, 3, 0.125, total),
        "ref_logprobs": (old + draw(-0.5, 0.5, 0.25, total)).clamp(max=0),
        "sampler_logprobs": (old + draw(-0.5, 0.5, 0.25, total)).clamp(max=0),
        "proxy_logprobs": draw(-6, 0, 0.25, total),
        "collision": draw(0, 1, 0.125, total),
        "old_collision": draw(0, 1, 0.125, total),
    }
    columns["proxy_logprobs"][torch.rand(total, generator=random) < 0.3] = -1e4
    scores = {
        f"{name}_logprob": (old + draw(-0.5, 0.5, 0.25, total)).clamp(max=0)
        for name in ("teacher", "hinted")
    }
    undecided = rewards.isnan().repeat_interleave(lengths)
    positions = torch.cat([torch.arange(int(n)) for n in lengths])
    stages = (positions // 3).double()
    new, starts = draw(0, 2, 1, total), positions == 0
    ends = new.cumsum(0)  # some turns have no token
    columns["turn"] = ends - (ends - new)[starts].repeat_interleave(lengths[lengths > 0])
    each = (1e4 * starts.cumsum(0) + columns["turn"]).unique(return_inverse=True)[1]
    columns["turn_reward"] = draw(-1, 1, 0.5, total)[each]
    states = draw(-1, 2, 1, total)[each]  # -1 is no state
    own = (("stage", stages), ("state", states))
    critic = torch.Generator().manual_seed(seed + 1000)  # the other numbers stay as they were
    values = {
        name: torch.randint(9, (total,), generator=critic).double() / 8
        for name in ("critic_value", "critic_new_value")
    }
    scores |= {name: value.masked_fill(undecided, NAN) for name, value in values.items()}
    bootstraps = torch.randint(-8, 9, (responses,), generator=critic).clamp(min=0).double() / 8
    for name, values in (*columns.items(), *scores.items(), *own):
        values[undecided] = 0.0 if name == "turn" else NAN
    return TokenBatch(
        lengths=lengths,
        groups=torch.arange(responses) // 4 * 7 + 3,
        ids=torch.arange(responses),
        rewards=rewards,
        columns={
            "stage": stages,
            "state": states,
            "reference_entropy": 3 - columns["old_entropy"],
            "reference_kl": columns["old_entropy"] / 4,
            "critic_bootstrap": bootstraps.to(dtype),
            **{name: values.to(dtype) for name, values in scores.items()},
        },
        **{name: values.to(dtype) for name, values in columns.items()},
    )


def rolled(batch: TokenBatch, seed: int) -> TokenBatch:
    """An awkward batch in which rollouts have one to four rows, all of one group.

    The rewards are those of a rollout's first row. Turns count through its rows.
    """
    random = torch.Generator().manual_seed(seed)
    assert batch.rewards is not None
    assert batch.turn is not None
    assert batch.turn_reward is not None
    rewards, turns, rollouts = batch.rewards.clone(), batch.turn.clone(), [0]
    ends: dict[int, int] = {}
    for row, group in enumerate(batch.groups.tolist()):
        same = row > 0 and group == int(batch.groups[row - 1])
        if same and torch.rand((), generator=random) < 0.5:
            rollouts.append(rollouts[-1])
            rewards[row] = rewards[row - 1]
        elif row:
            rollouts.append(rollouts[-1] + 3)
        mine = batch.responses == row
        turns[mine] += ends.get(rollouts[-1], 0)
        ends[rollouts[-1]] = int(turns[mine].max()) + 1 if mine.any() else ends.get(rollouts[-1], 0)
    order = torch.randperm(len(rollouts), generator=random)  # of the ids, which say nothing
    columns = {name: column.nan_to_num(0.0) for name, column in batch.columns.items()}
    columns |= {"bucket": torch.tensor(rollouts)[:, None] % 3 - 1} if "bucket" in columns else {}
    ids = torch.tensor(rollouts)
    undecided = rewards.reshape(len(ids), -1).isnan().any(1).repeat_interleave(batch.lengths)
    return batch.replace(
        rollouts=order[ids // 3],
        rewards=rewards,
        turn=torch.where(undecided, 0, turns),
        turn_reward=batch.turn_reward.nan_to_num(0.5).masked_fill(undecided, NAN),
        **{name: getattr(batch, name).nan_to_num(value) for name, value in FILLED.items()},
        columns=columns,
    )


FILLED = {
    **dict.fromkeys(("logprobs", "old_logprobs", "ref_logprobs", "proxy_logprobs"), -1.0),
    **dict.fromkeys(("entropy", "old_entropy", "collision", "old_collision"), 1.0),
}
"""What `rolled` has where a response of `awkward_batch` was undecided."""
OWN: dict[str, Any] = {
    **{"stage": "token", "mark": "token"},
    **{"state": "turn", "role": "response", "outcome": "response", "bucket": "rollout"},
}
"""The columns of one's own of `owned`, each with its level; all but `outcome` are whole numbers."""


def owned(batch: TokenBatch, seed: int) -> TokenBatch:
    """An awkward batch with all columns of OWN, `versions`, and what the sampler did not report.

    -1 is in no unit. `role` and `outcome` have one value per response, also where it is empty.
    Undecided responses have the newest versions.
    """
    random = torch.Generator().manual_seed(seed)
    size = len(batch.lengths)
    assert batch.rewards is not None
    assert batch.sampler_logprobs is not None
    unknown = torch.rand(len(batch), generator=random) < 0.3
    outcome = torch.randint(-2, 3, (size,), generator=random).double() / 2
    role = torch.randint(-1, 2, (size,), generator=random)
    mark = torch.randint(-1, 3, (len(batch),), generator=random)
    undecided = ~batch.decided_responses
    return batch.replace(
        sampler_logprobs=batch.sampler_logprobs.masked_fill(unknown, NAN),
        versions=torch.randint(0, 4, (len(batch),), generator=random) + 5 * ~batch.decided,
        columns={
            **batch.columns,
            "outcome": outcome.masked_fill(undecided, NAN)[:, None],
            "role": role.masked_fill(undecided, 7)[:, None],
            "bucket": (torch.arange(size) % 3 - 1).masked_fill(undecided, 7)[:, None],
            "mark": mark,
        },
    )


def two_rewards(table: TokenBatch) -> TokenBatch:
    """The table with a second reward, which depends on the response's id alone."""
    assert table.rewards is not None
    assert table.ids is not None
    second = (table.ids % 3).double() / 2
    second[table.ids % 11 == 5] = NAN
    rewards = torch.stack([table.rewards.double(), second], 1)
    return table.replace(rewards=rewards, reward_names=("a", "b"), reward_weights=(1.0, 0.25))


def leaf(table: TokenBatch) -> TokenBatch:
    """The table with fresh leaves that collect gradients: `logprobs` and `entropy`."""
    columns: dict[str, Any] = {"logprobs": table.logprobs.detach().clone().requires_grad_()}
    if table.entropy is not None:
        columns["entropy"] = table.entropy.detach().clone().requires_grad_()
    return table.replace(**columns)


def gradients(table: TokenBatch) -> Tensor:
    """The gradients that `leaf`'s columns collected, [2, N]."""
    assert table.entropy is not None
    columns = (table.logprobs, table.entropy)
    return torch.stack([torch.zeros_like(x) if x.grad is None else x.grad for x in columns])


def loss_and_gradients(objective: Objective, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """The loss of one table that is a whole update, and its gradients, [2, N]."""
    table = leaf(batch)
    loss = objective(table).loss
    loss.backward()
    return loss.detach(), gradients(table)


def compositions() -> dict[str, Objective]:
    """Objectives that no preset covers, each for one path through `plan`."""
    base = Objective(surrogate=Clip(low=0.2, high=0.28))
    rare = (advantage > 0) & (prob < 0.1) & entropy.bottom(0.8)
    open_gate = {"W": Gate(target=10.0, on=1.1)}
    climbing = AdaptiveGate(target=10.0, start=0.01, low=0.0, high=1.0, off=0.0)
    number = reward.mean(within=advantage < 0) + old_entropy.max()
    measured = AdaptiveGate(of=number, target=99.0, start=1.1, low=1.0, high=1.5)
    bonus = EntropyBonus(coefficient="C", where=entropy.top(0.5), divisor=PromptMean())
    return {
        "drop, prompt mean": base.drop(rare).replace(divisor=PromptMean()),
        "drop, sequence mean": base.drop(rare).replace(divisor=SequenceMean()),
        "drop, sequence mean over all": base.drop(rare).replace(divisor=SequenceMean(over="all")),
        "keep, sequence sum": base.keep(entropy.top(0.2)).replace(divisor=SequenceSum()),
        "keep, fixed length": base.keep(entropy.top(0.2)).replace(divisor=FixedLength(length=9)),
        "quantile": base.keep(entropy <= entropy.quantile(0.3, within=advantage < 0)),
        "sample": base.drop((covariance > 0).sample(0.25, seed=3)),
        "gate open": base.replace(controllers=open_gate).reweight(
            when(surprisal.top(0.1, within=advantage > 0), "W", 1)
        ),
        "gate on the rewards": base.replace(controllers={"W": measured}).reweight("W"),
        "bootstrap": base.replace(
            advantage={
                "kind": "gae",
                "gamma": 0.9,
                "lam": "1 / (1 + length)",
                "truncated": "bootstrap",
            },
            values=[
                {"kind": "clipped_squared", "coefficient": "prob", "where": "critic_value < 0.8"}
            ],
        ),
        "truncate": base.replace(mismatch=Truncate(level="sequence", cap=1.5)),
        "mask": base.replace(mismatch=Mask(low=0.8, high=1.2)).reweight(1 - 0.5 * prob),
        "entropy bonus": base.replace(penalties=[bonus], controllers={"C": climbing}),
        "two penalties": base.split(prob < 0.3).replace(
            penalties=[
                KL(coefficient=0.1, where=advantage > 0, unbiased=True),
                KL(coefficient=0.2, estimator="k2", divisor=SequenceMean(over="all")),
            ]
        ),
        "switch": base.replace(
            advantage=LeaveOneOut(),
            surrogate=Switch(
                surprisal.top(0.3),
                GeometricMean(),
                Switch(ratio < 1, SoftGate(), Clip(ratio="product")),
            ),
        ),
        "phase": Objective(
            advantage=GroupCentered(), surrogate=DppoTv(against="sampler", cap=None)
        ).replace(phase=parse("old_prob < 0.5")),
        "decoupled": base.replace(advantage=Decoupled(then=GroupNormalized(scale="batch"))),
        "decoupled, whitened": base.keep("advantage > 0").replace(advantage=Decoupled()),
        "turn return": base.keep("advantage > 0").replace(advantage=TurnReturn(discount=0.5)),
        "turn return, normalized": base.replace(advantage=TurnReturn(each=GroupNormalized())),
        "unclipped on length": Objective(
            surrogate=Unclipped(), keep="position < length / 2 and reward > 0"
        ),
    }


@dataclass(frozen=True)
class Crowded(CustomRule):
    """Tokens of responses with at least this many rare tokens, if rare tokens are few."""

    least: int = 2
    share: float = 0.9

    def reads(self) -> tuple[Expr, ...]:
        return (prob,)

    def select(self, frame: Any) -> Tensor:
        rare = (frame.number(prob) < 0.1) & frame.decided
        found, size = (statistics.count(mask, frame.comm) for mask in (rare, frame.decided))
        crowded = frame.table.sum_by_response(rare.double()) >= self.least
        return frame.table.spread(crowded) & (found < self.share * size)


def language() -> dict[str, Objective]:
    """One objective or more for each form of the rule language."""
    base = Objective(surrogate=Clip(low=0.2, high=0.28))
    gap = old_logprob - logprob
    staged = Objective(columns=["stage"])
    return {
        "above the mean": base.keep(entropy > entropy.mean()),
        "mean within": base.keep(entropy > entropy.mean(within=advantage > 0)),
        "any": base.drop((prob < 0.0005).any(by="response")),
        "all": base.drop((prob < 0.9).all(by="group") | (prob < 0.9).all(within=reward > 0)),
        "mean by response": base.drop((advantage < 0) & (gap.mean(by="response") > 0.01)),
        "mean by group": base.keep(reward.mean(by="group") < 0.4).reweight(
            1 + reward.mean(by="group") / 2
        ),
        "mean of means": base.keep(
            gap.mean(by="response") <= gap.mean(by="response").mean(by="group")
        ),
        "by position": base.keep(
            (entropy > entropy.mean(by="position")) | prob.top(0.2, by="group")
        ).reweight(1 + (prob < 0.1).share(by="position")),
        "min, max": base.keep(entropy.max(by="group") - entropy.min(by="response") > 2.5).reweight(
            1 + length / length.max()
        ),
        "std": base.keep(entropy > entropy.std(within=advantage > 0)).reweight(
            1 + reward.std(by="group") + prob.std(by="response") + length.std()
        ),
        "sum": base.reweight(prob.sum(by="response") / prob.sum() + prob.sum(by="group")),
        "count, share": base.keep((prob < 0.1).count(by="group") > 20).reweight(
            (prob < 0.1).share(by="response") + (reward > 0).share(by="group", within=length > 3)
        ),
        "top by response": base.keep(entropy.top(0.2, by="response")),
        "bottom by group": base.keep(
            surprisal.bottom(0.5, within=advantage < 0, none_below=3, by="group")
        ),
        "quantile by group": base.keep(prob <= prob.quantile(0.3, by="group")),
        "quantile by response": base.reweight(0.1 + prob.quantile(0.5, by="response")),
        "responses": base.keep(
            length.bottom(0.5, by="group", of="response")
            | reward.top(0.1, within=entropy > 2.5, of="response")
        ).reweight(1 + entropy.mean(by="response").quantile(0.3, by="group", of="response")),
        "rollouts": base.keep(
            entropy.mean(by="rollout") < entropy.mean(by="rollout").mean(by="group") + 1
        ).reweight(
            (length / rollout_rows).rank(within=position >= 0)
            + surprisal.max(by="rollout").quantile(0.5, of="response")
            + (prob < 0.1).share(by="rollout")
        ),
        "sequence mean over rows": base.replace(divisor=SequenceMean(of="row")),
        "sample of responses": base.drop((prob < 0.001).sample(0.3, seed=1, of="response")),
        "bottom to mean": base.drop(
            (advantage * gap < 0) & ~(gap**2).bottom_to_mean(0.04, within=advantage * gap < 0)
        ).reweight(when(surprisal.bottom_to_mean(3, by="group"), 2, 1)),
        "rank": base.drop(entropy.rank(within=advantage > 0, by="group") > 0.7).reweight(
            length.rank() + reward.rank(by="group") + prob.rank(by="position")
        ),
        "rank by response": base.replace(shape=advantage * surprisal.rank(by="response")),
        "suffix sum": base.reweight(clip(exp(-gap.suffix_sum(decay=0.9)), 0.8, 1.2)),
        "prefix sum": base.keep(abs(gap).prefix_sum() < 1),
        "prefix min": base.reweight(ratio.prefix_min()).keep(entropy.suffix_max() > 0.5),
        "decay of tokens": base.reweight(clip(exp(gap.suffix_sum(decay=prob)), 0.8, 1.2)),
        "decay of responses": base.replace(
            shape="advantage + 0.1 * entropy.suffix_sum(decay=1 - 1 / length)"
        ),
        "decay of turns": base.keep(turn_reward.suffix_sum(decay=1 / (1 + turn)) > 0.4),
        "functions": base.reweight(
            maximum(sqrt(prob), minimum(prob**1.7, 0.5)) + log(1 + entropy) * sign(old_entropy)
        ),
        "power": base.keep((prob**1.7).top(0.3)),
        "undefined": base.drop(~(entropy > entropy.mean(within=prob > 2))),
        "settings": Objective(
            surrogate=Clip(low="0.1 + 0.2 * old_prob", high="W - 1 + 0.1 * entropy", dual="9 + W"),
            controllers={"W": Gate(target=10.0, on=1.1)},
            penalties=[KL(coefficient="0.1 * prob.mean(by='response')")],
            mismatch=Truncate(cap="1 + entropy / entropy.mean(by='group')"),
        ),
        "settings of other surrogates": Objective(
            surrogate=Switch(
                entropy.top(0.5, by="group"),
                Cispo(max="1 + 0.2 * entropy.max(by='response')"),
                Switch(
                    prob.top(0.5),
                    ClippedRatio(max="1.1 + 0.1 * entropy"),
                    SoftGate(tau_pos="1 + 0.1 * entropy", tau_neg=1.05),
                ),
            )
        ),
        "shape": base.replace(shape="advantage + minimum(0.4 * entropy, abs(advantage) / 2)").keep(
            "advantage >= 0"
        ),
        "shape by group": base.replace(shape="advantage * entropy / entropy.mean(by='group')"),
        "turns": base.keep(
            turn_reward.suffix_sum(0.5).top(0.5, by="group_turn", of="turn")
        ).reweight(1 + turn_reward.rank(by="group_turn") + prob.suffix_sum(by="turn") / length),
        "shape of turns": base.replace(
            shape="turn_reward.suffix_sum() - turn_reward.suffix_sum().mean(by='group_turn')"
        ),
        "own column": staged.keep("stage >= stage.mean(by='response')"),
        "custom rule": base.drop(Crowded()),
        "second of three phases": base.split(prob < 0.3).split(entropy > 1).phases[1],
        "geometric mismatch": base.replace(mismatch=Mask(level="geometric", low=0.95, high=1.05)),
        "named reward": base.keep("reward('b') > reward('b').mean()").reweight("1 + reward('a')"),
    }


@functools.cache
def objectives() -> dict[str, Objective]:
    """Every preset that reads rewards, and every composition, by name."""
    presets = {name: load_preset(name).objective for name in preset_names()}
    presets = {name: preset for name, preset in presets.items() if preset.reads_rewards}
    return {**presets, **compositions(), **language()}


def fitting(objective: Objective, table: TokenBatch) -> TokenBatch:
    """The table with rewards that the objective takes: two with names, or none below 0."""
    if table.reward_names:
        return table
    if objective.advantage.nonnegative and table.rewards is not None:
        return table.replace(rewards=table.rewards.clamp(min=0))
    rules = (objective.keep_rule, objective.drop_rule, objective.weight)
    nodes = [node for rule in rules if rule is not None for node in rule.walk()]
    named = any(isinstance(node, NamedReward) for node in nodes)
    return two_rewards(table) if named or objective.advantage.decoupled else table


fractions = st.floats(0, 1) | st.sampled_from([0, 1, 0.1, 0.07, 2e-4])
counts = st.integers(0, 5)
constants = st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False)
by_response = st.sampled_from([column("role", "response"), column("bucket", "rollout")])
by_turn = by_response | st.just(column("state", "turn"))
by_token = by_turn | st.sampled_from([column("stage"), column("mark")])
levels = st.sampled_from(
    ["update", "group", "position", "rollout", "response", "turn", "group_turn"]
)
levels |= by_token
whole_levels = st.sampled_from(["update", "group", "rollout", "response"]) | by_response
turn_levels = whole_levels | st.sampled_from(["turn", "group_turn"]) | by_turn
cut_levels = turn_levels | by_token
limits = st.sampled_from([0, 0.5, 1, 0.04, -1.25]) | st.floats(-10, 10)
decays = st.sampled_from([1, 1.0, 0.9, 0.5]) | st.floats(0, 1, exclude_min=True)
roundings = st.sampled_from(["ceil", "floor", "linear"])
extremes = st.sampled_from(["prefix_min", "prefix_max", "suffix_min", "suffix_max"])


def shares(numbers: Any) -> Any:
    """Expressions that are a decay where they are defined, and now and then one that is not."""
    return numbers.map(lambda x: clip(x, 0, 1)) | numbers.map(lambda x: clip(x, -1, 1))


def _sum(name: str) -> Any:
    def build(value: Any, decay: Any) -> Expr:
        finer = isinstance(decay, Expr) and decay.level > value.level == Level.TURN
        return getattr(value, name)(0.25 if finer else decay)

    return build


def _cut(side: str) -> Any:
    def build(value: Any, f: float, *settings: Any) -> Expr:
        return getattr(value, side)(f, *settings)

    return build


def _method(name: str) -> Any:
    return lambda expression, by, within: getattr(expression, name)(by, within)


def _aggregates(expressions: Any, populations: Any, *names: str) -> list[Any]:
    """Aggregates of expressions that are not the same for the whole update."""
    varying = expressions.filter(lambda x: x.level > Level.UPDATE)
    return [st.builds(_method(name), varying, levels, populations) for name in names]


def name_of(expression: Expr) -> str:
    """A name that `let` may give to an expression: another one for each text."""
    return f"n{zlib.crc32(str(expression).encode())}"


def larger_numbers(expressions: tuple[Any, Any]) -> Any:
    """Numbers one level deeper than the given numbers and rules."""
    numbers, rules = expressions
    pairs, populations = st.tuples(numbers, numbers), st.none() | rules
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        pairs.map(lambda p: p[0] / p[1]),
        pairs.map(lambda p: p[0] ** p[1]),
        pairs.map(lambda p: minimum(*p)),
        pairs.map(lambda p: maximum(*p)),
        st.builds(clip, numbers, numbers, numbers),
        numbers.map(lambda x: -x),
        st.builds(lambda f, x: f(x), st.sampled_from([abs, exp, log, sqrt, sign]), numbers),
        st.builds(
            lambda x, *s, line: x.quantile(*s, interpolate=line),
            ranked(numbers),
            *(fractions, populations, cut_levels),
            line=st.booleans(),
        ),
        st.builds(
            lambda x, *s, line: x.quantile(*s, "response", line),
            of_responses(numbers),
            *(fractions, populations, whole_levels),
            line=st.booleans(),
        ),
        numbers.map(lambda x: NamedNumber(name_of(x), x)),
        st.builds(
            lambda x, *s: x.rank(*s),
            numbers.filter(lambda x: x.level > Level.UPDATE),
            populations,
            levels,
        ),
        st.builds(when, rules, numbers, numbers),
        st.builds(_sum("prefix_sum"), numbers, decays | shares(numbers)),
        st.builds(_sum("suffix_sum"), numbers, decays | shares(numbers)),
        st.builds(
            lambda x, decay: x.suffix_sum(decay, by="turn"),
            numbers.filter(lambda x: x.level != Level.TURN),
            decays | shares(numbers),
        ),
        st.builds(lambda x, name: getattr(x, name)(), numbers, extremes),
        st.builds(
            lambda x, name: getattr(x, name)(by="turn"),
            numbers.filter(lambda x: x.level != Level.TURN),
            extremes,
        ),
        *_aggregates(numbers, populations, "mean", "std", "sum", "min", "max"),
        *_aggregates(rules, populations, "count", "share"),
    )


def larger_rules(expressions: tuple[Any, Any]) -> Any:
    """Rules one level deeper than the given numbers and rules."""
    numbers, rules = expressions
    pairs, joined = st.tuples(numbers, numbers), st.tuples(rules, rules)
    settings = (fractions, st.none() | rules, roundings, counts, counts, cut_levels)
    return st.one_of(
        pairs.map(lambda p: p[0] < p[1]),
        pairs.map(lambda p: p[0] <= p[1]),
        pairs.map(lambda p: p[0] > p[1]),
        pairs.map(lambda p: p[0] >= p[1]),
        joined.map(lambda p: p[0] & p[1]),
        joined.map(lambda p: p[0] | p[1]),
        rules.map(lambda r: ~r),
        rules.map(lambda r: NamedRule(name_of(r), r)),
        st.builds(_cut("top"), ranked(numbers), *settings),
        st.builds(_cut("bottom"), ranked(numbers), *settings),
        st.builds(
            _cut("top"), of_responses(numbers), *settings[:-1], whole_levels, st.just("response")
        ),
        st.builds(_cut("bottom"), of_turns(numbers), *settings[:-1], turn_levels, st.just("turn")),
        st.builds(_cut("bottom_to_mean"), ranked(numbers), limits, st.none() | rules, cut_levels),
        st.builds(
            lambda r, size, seed, of, round, least: r.sample(size, seed, of, round, least),
            rules,
            st.integers(0, 99) | st.floats(0, 1),
            st.integers(0, 5),
            st.sampled_from(["rule", "all", "response"]),
            st.sampled_from(["ceil", "floor"]),
            counts,
        ),
        *_aggregates(rules, st.none() | rules, "any", "all"),
    )


def by_own_columns(expressions: tuple[Any, Any]) -> tuple[Any, Any]:
    """Numbers and rules with populations by a column of one's own, or interpolated quantiles."""
    numbers, rules = expressions
    within = st.none() | rules
    varying = numbers.filter(lambda x: x.level > Level.UPDATE)
    means = [st.builds(_method(name), varying, by_token, within) for name in ("mean", "sum", "max")]
    settings = (fractions, within, roundings, counts, counts, by_token)
    cuts = [st.builds(_cut(side), ranked(numbers), *settings) for side in ("top", "bottom")]
    held = rules.filter(lambda x: x.level > Level.UPDATE)
    return (
        st.one_of(
            *means,
            st.builds(lambda x, *s: x.rank(*s), varying, within, by_token),
            st.builds(_method("count"), held, by_token, within),
            st.builds(
                lambda x, *s: x.quantile(*s, interpolate=True),
                *(ranked(numbers), st.floats(0, 1), within, cut_levels),
            ),
        ),
        st.one_of(*cuts, st.builds(_method("any"), held, by_token, within)),
    )


def ranked(numbers: Any) -> Any:
    """Numbers that a cut may rank: those that differ within the update."""
    return numbers.filter(lambda x: x.level > Level.UPDATE)


def of_responses(numbers: Any) -> Any:
    """Numbers by which a cut may rank responses."""
    simple = st.sampled_from(
        [
            *(reward, length, rollout_rows, reward("format")),
            *(entropy.mean(by="response"), staleness.max(by="response")),
        ]
    )
    return simple | ranked(numbers.filter(lambda x: x.level < Level.TURN))


def of_turns(numbers: Any) -> Any:
    """Numbers by which a cut may rank turns."""
    simple = st.sampled_from([turn, turn_reward, turn_reward.suffix_sum(0.5)])
    return simple | ranked(numbers.filter(lambda x: x.level < Level.TOKEN))


def expressions(depth: int = 3, constants: Any = constants) -> tuple[Any, Any]:
    """Strategies for (numbers, rules), built through the operators that users write."""
    columns = st.sampled_from([*map(column, sorted(COLUMNS)), *map(column, OWN, OWN.values())])
    names = st.sampled_from(["W", "M", "Beta_2"]).map(Controlled)
    rewards = st.sampled_from(["accuracy", "format"]).map(reward)
    numbers: Any = columns | columns | rewards | names | constants.map(Constant)
    rules: Any = st.builds(lambda c, x: c < x, columns, constants) | st.just(sampler_known)
    for _ in range(depth):
        numbers, rules = (
            st.one_of(numbers, larger_numbers((numbers, rules))),
            st.one_of(rules, larger_rules((numbers, rules))),
        )
    return numbers, rules
