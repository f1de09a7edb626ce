"""Columns of one's own: what they have one value for, and populations by their values."""

from __future__ import annotations

from typing import Any

import pytest
import test_turns
import torch
from strategies import NAN, tokens

from rlobj import BatchError, ConfigError, Objective, TokenBatch, column, reward
from rlobj.objectives.frame import Frame
from rlobj.objectives.rules import Scope, parse
from rlobj.objectives.statistics import SingleProcess
from rlobj.settings.run_config import RunConfig

LEVELS: Any = {"outcome": "response", "state": "turn", "role": "response", "mark": "token"}
LARGE = 2**60
"""In float64 it is the same number as `LARGE + 1`."""
BATCH = test_turns.BATCH.replace(
    columns={
        "outcome": [1.0, 8.0, 3.0, 5.0, NAN],
        "role": [LARGE, LARGE + 1, LARGE, LARGE, 7],
        "state": [4, 4, 9, 4, -1, -1, 4, 4, 4],
        "mark": [0, 1, 1, -5, 1, 0, 0, 1, 1],
    },
)
"""Responses 0 to 2 are a group. Response 1 has no token, and response 4 is undecided."""


def numbers(text: str, tables: Any = (BATCH,), comm: Any = None) -> list[float]:
    """The number, or 1 and 0 of the rule, on each token of a decided response."""
    tables = [table.replace(advantages=table.logprobs) for table in tables]
    expression = parse(text, Scope(LEVELS))
    read = dict.fromkeys(["logprobs", "advantages", "rewards", *expression.batch_columns()], "it")
    frame = Frame(tables, read, comm or SingleProcess())
    values = frame.rule(expression) if expression.is_rule else frame.number(expression)  # type: ignore[arg-type]
    frame.check()
    return values[frame.decided].double().tolist()


EXPECTED = {
    "outcome.mean(by='group')": [4] * 6 + [5],  # (1 + 8 + 3) / 3: responses, also without tokens
    "outcome.sum()": [17] * 7,
    "outcome.max(by='group')": [8] * 6 + [5],
    "outcome.top(0.3, by='group', of='response')": [0] * 6 + [1],  # response 1 has no token
    "outcome + surprisal": [2, 3, 4, 7, 8, 9, 12],
    "turn_reward.sum(by='state')": [5, 5, 2, 5, 0, 0, 5],  # the group's turns in state 4: 1 + 4
    "turn_reward.mean(by='state')": [2.5, 2.5, 2, 2.5, 0, 0, 5],  # 0: undefined
    "(turn_reward >= 0).count(by='state')": [2, 2, 1, 2, 0, 0, 1],
    "turn_reward.rank(by='state')": [0, 0, 0.5, 1, 0, 0, 0.5],
    "turn_reward.top(0.5, by='state', of='turn')": [0, 0, 1, 1, 0, 0, 1],
    "turn_reward.quantile(0.5, by='state', of='turn')": [1, 1, 2, 1, 0, 0, 5],
    "(turn_reward > 3).any(by='state')": [1, 1, 0, 1, 0, 0, 1],
    "surprisal.mean(by='state')": [7 / 3, 7 / 3, 3, 7 / 3, 0, 0, 7],  # tokens 1, 2 and 4
    "surprisal.sum(by='mark')": [7, 10, 10, 0, 10, 7, 7],  # -5 is in no unit
    "surprisal.top(0.5, by='mark')": [0, 0, 1, 0, 1, 1, 1],
    # nothing is selected in no unit, also where the number is undefined
    "~surprisal.mean('response', prob > 2).top(0.5, by='mark')": [0, 0, 0, 1, 0, 0, 0],
    "outcome.mean(by='role')": [2, 2, 2, 2, 2, 2, 5],  # responses 0 and 2; 2^60 + 1 is another
    "outcome.sum(by='role') + (outcome > 0).count(by='role')": [6] * 6 + [6],
    "reward.mean(by='role', within=outcome < 2)": [3, 3, 3, 3, 3, 3, 0],
}


@pytest.mark.parametrize("text", EXPECTED)
def test_populations_by_a_column_equal_those_counted_by_hand(text: str) -> None:
    assert numbers(text) == pytest.approx(EXPECTED[text])


def test_a_column_given_for_each_token_must_be_the_same_in_its_response_and_turn() -> None:
    batch = tokens([2, 3], [-1.0] * 5, rewards=[1, 0], turn=[0, 1, 0, 0, 1])
    same = batch.replace(columns={"outcome": [4, 4, 6, 6, 6], "state": [1, 2, 3, 3, 5]})
    assert numbers("outcome.sum()", [same]) == [10] * 5
    for name, place in (("outcome", r"row 3 \(response 1, token 1\)"), ("state", "row 3")):
        wrong = batch.replace(columns={name: [4, 4, 6, 5, 6]})
        unit = {"outcome": "response", "state": "turn"}[name]
        with pytest.raises(BatchError, match=f"several values in a {unit} at {place}"):
            numbers(f"{name}.sum()", [wrong])


def test_a_response_without_tokens_needs_a_value_of_its_own() -> None:
    batch = tokens([2, 0], [-1.0, -2.0], rewards=[1, 0], columns={"outcome": [4, 4]})
    with pytest.raises(BatchError, match="one value per token, and there is none at response 1"):
        numbers("outcome.sum()", [batch])
    batch = batch.replace(columns={"outcome": [[4], [5]]})
    assert numbers("outcome.sum()", [batch]) == [9, 9]
    assert numbers("outcome.sum()", batch.split(2)) == [9, 9]


def test_values_of_responses_are_not_counted_for_each_token_without_a_word() -> None:
    objective = Objective(columns=["outcome"], drop="outcome > outcome.mean(by='group')")
    batch = tokens([3, 1], [-1.0] * 4, rewards=[1, 0], columns={"outcome": [1.0, 5]})
    with pytest.raises(BatchError, match=r"has one value per response: .*{outcome: response}"):
        objective(batch)
    objective.replace(drop="outcome > 2")(batch)  # each token reads its response's


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("state > state.mean()", [0, 1, 1, 1, 1]),  # the mean of 1, 4 and 3
        ("length.top(0.6, of='turn')", [1, 1, 1, 1, 0]),  # two of three turns
        ("length >= length.quantile(0.5, of='turn')", [1, 1, 1, 1, 0]),  # the second of 1, 4, 4
    ],
)
def test_what_counts_turns_reads_which_tokens_are_a_turn(rule: str, kept: list[int]) -> None:
    """Several tables drop the columns that nothing reads; without `turn`, each response is one."""
    objective = Objective(columns={"state": "turn"}, keep=rule)
    batch = tokens([4, 1], [-1.0] * 5, rewards=[1, 0], turn=[0, 1, 1, 1, 0])
    batch = batch.replace(columns={"state": [1, 4, 4, 4, 3]})
    for tables in ([batch], batch.split(2)):
        assert (torch.cat(objective.plan(tables).weights) != 0).tolist() == [bool(x) for x in kept]


@pytest.mark.parametrize("first", [2.0**24, 2.0**52])
def test_a_list_of_floats_keeps_whole_numbers_apart(first: float) -> None:
    state = [first, first + 1, first]
    objective = Objective(columns={"state": "token"}, keep="(prob > 0).count(by='state') > 1")
    flat = tokens([3], [-1.0] * 3, rewards=[1.0]).replace(columns={"state": state})
    padded = TokenBatch.from_padded(
        mask=torch.tensor([[1, 1, 1, 0]]),
        logprobs=torch.full((1, 4), -1.0),
        rewards=[1.0],
        groups=[0],
        columns={"state": [[*state, 0.0]]},
    )
    for batch in (flat, padded):
        assert batch.columns["state"].tolist() == state
        assert (objective.plan([batch]).weights[0] != 0).tolist() == [True, False, True]


def test_what_is_no_whole_number_is_refused() -> None:
    batch = BATCH.replace(columns={"role": [0.5, 1, 1, 1, 1]})
    with pytest.raises(BatchError, match=r"by='role' takes whole numbers.*response 0"):
        numbers(
            "outcome.mean(by='role')",
            [batch.replace(columns={**batch.columns, "outcome": [1.0] * 5})],
        )


def test_levels_are_written_and_read_again() -> None:
    objective = Objective(columns={"outcome": "response"}, drop="outcome.rank(by='group') < 0.5")
    assert Objective(**objective.model_dump(by_alias=True)) == objective
    assert objective.model_dump()["columns"] == {"outcome": "response"}
    assert Objective(columns={"stage": "token"}).model_dump()["columns"] == ["stage"]
    outcome = column("outcome", level="response")
    assert Objective(columns={"outcome": "response"}, drop=outcome > outcome.mean("group"))
    assert outcome != column("outcome")
    assert outcome.mean() != column("outcome").mean()
    by = Objective(
        columns={"state": "response"}, drop=reward > reward.mean(by=column("state", "response"))
    )
    assert str(by.drop_rule) == "reward > reward.mean(by='state')"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"columns": {"outcome": "group"}},
            "columns.outcome: .*'token', 'turn', 'response' or 'rollout'",
        ),
        ({"drop": "reward < reward.mean(by='state')"}, "by='state': expected one of update, group"),
        (
            {"columns": {"state": "turn"}, "drop": "reward < reward.mean(by='stat')"},
            "expected one of .*, state",
        ),
        (
            {"columns": {"state": "turn"}, "drop": "length.top(0.5, by='state', of='response')"},
            "a response lies in several of by=",
        ),
        (
            {"columns": {"outcome": "response"}, "drop": column("outcome") > 1},
            r"write column\('outcome', 'response'\)",
        ),
    ],
)
def test_a_wrong_level_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Objective(**settings)


def test_padded_columns_of_responses_stay_theirs() -> None:
    mask = torch.tensor([[1, 1], [0, 0]])
    batch = TokenBatch.from_padded(mask, mask * -1.0, columns={"outcome": [3, 4]})
    assert batch.columns["outcome"].tolist() == [3, 4]
    assert numbers("outcome.sum()", [batch.replace(rewards=[1, 0])]) == [7, 7]


def test_the_columns_of_a_run_keep_the_levels_that_its_objective_declares() -> None:
    objective = {"columns": {"state": "response"}, "drop": "reward < reward.mean(by='state')"}
    run = RunConfig(columns={"state": "data", "mark": "reward"}, objective=objective)
    assert run.objective.columns == {"state": "response", "mark": "token"}
    again = RunConfig(columns={"state": "data", "mark": "reward"}, objective=run.objective)
    assert again.objective == run.objective
