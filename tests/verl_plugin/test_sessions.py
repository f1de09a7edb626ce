"""Sessions of several responses: rollouts of several rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import sessions
import torch
from alone import difference
from conftest import two_processes
from harness import Workers, changed, nested
from ray.exceptions import RayTaskError
from tensordict import TensorDict
from test_rollouts import TOLERANCE, update, with_names

from rlobj.integrations.verl.names import INDEX
from rlobj.integrations.verl.tables import marked_once


def test_a_session_of_several_responses_counts_once(workers: Workers, sharp_policy: Path) -> None:
    workers.group.begin("grpo")
    data = workers.score(sessions.several())
    data[INDEX] = torch.tensor([index for _, _, index in sessions.names()])
    [found] = update(workers, data, micro_batch_size_per_gpu=4)
    assert difference(found, sessions.by_hand(sharp_policy, data)) < TOLERANCE
    alone = with_names(data, list(data["uid"])).exclude(INDEX)
    workers.group.begin("grpo")
    [as_rollouts] = update(workers, alone, micro_batch_size_per_gpu=4)
    assert difference(as_rollouts, found) > 100 * TOLERANCE


@two_processes
def test_responses_of_a_session_with_two_rewards_are_refused(workers: Workers) -> None:
    workers.group.begin("grpo")
    data = workers.score(sessions.several())
    data[INDEX] = torch.tensor([index for _, _, index in sessions.names()])
    scores = list(data["rm_scores"].unbind())
    scores[20] = scores[20] + 1  # the last of its session; the first is on the other process
    with pytest.raises(RayTaskError, match="reward"):
        update(workers, changed(data, rm_scores=scores))


def marked(*rows: tuple[str, str, str]) -> list[str]:
    """What `marked_once` leaves of rows of one session: (ids, marks, log-probs), a digit each.

    Ids are of prompt and response; marks and log-probs are of the response.
    """
    columns = zip(
        *([torch.tensor([*map(int, digits)]) for digits in row] for row in rows), strict=True
    )
    names = ("input_ids", "loss_mask", "rollout_log_probs")
    fields = {name: nested(column) for name, column in zip(names, columns, strict=True)}
    data = TensorDict(fields, [len(rows)])
    masks = marked_once(["a_0"] * len(rows), torch.arange(len(rows)), data)
    return ["".join(map(str, mask.tolist())) for mask in masks.unbind()]


def test_a_shared_beginning_is_marked_in_the_first_row_only() -> None:
    whole, branch = ("123456", "1111", "7777"), ("12349", "111", "777")
    assert marked(whole, branch, branch) == ["1111", "001", "000"]


def test_the_same_ids_with_other_log_probs_were_sampled_twice() -> None:
    assert marked(("123456", "1111", "7777"), ("123456", "1111", "7877")) == ["1111", "0111"]


def test_other_prompts_share_nothing() -> None:
    assert marked(("123456", "1111", "7777"), ("133456", "1111", "7777")) == ["1111", "1111"]


def test_a_beginning_is_shared_across_context() -> None:
    """Of a tool in both rows; then of the prompt in the earlier row."""
    assert marked(("12345", "101", "707"), ("12345", "101", "707")) == ["101", "000"]
    assert marked(("12345", "11", "78"), ("12345", "1111", "9978")) == ["11", "1100"]


def test_rows_are_compared_within_their_session_in_the_order_of_their_index() -> None:
    row = torch.tensor([1, 2, 3])
    names = ("input_ids", "loss_mask", "rollout_log_probs")
    mask = torch.ones(3, dtype=torch.int64)
    fields = {name: nested([mask if name == "loss_mask" else row] * 4) for name in names}
    order = torch.tensor([1, 0, 0, 10])
    masks = marked_once(["a_0", "a_1", "a_0", "a_0"], order, TensorDict(fields, [4]))
    assert [int(mask.sum()) for mask in masks.unbind()] == [0, 3, 3, 0]
