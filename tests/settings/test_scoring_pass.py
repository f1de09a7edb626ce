"""For which columns of the policy a step makes a scoring pass."""

from __future__ import annotations

from typing import Any

import pytest

from rlobj import Objective
from rlobj.objectives.penalties import Penalty
from rlobj.settings.scoring_pass import scored_columns
from rlobj.settings.training import TrainingConfig


class Certainty(Penalty):
    """A penalty of one's own that reads the old policy in the loss."""

    def needs(self) -> tuple[str, ...]:
        return ("old_entropy",)

    def __call__(self, terms: Any) -> Any:
        return terms.logprobs * terms.column("old_entropy")


@pytest.mark.parametrize(
    ("settings", "updates", "of_policy", "of_sampler"),
    [
        ({}, 1, set(), set()),
        ({}, 2, {"old_logprobs"}, set()),
        ({"split": "old_prob < 0.5"}, 1, {"old_logprobs"}, set()),
        ({"mismatch": "truncate"}, 1, {"old_logprobs"}, set()),
        ({"drop": "ratio > 2"}, 1, {"logprobs", "old_logprobs"}, {"logprobs"}),
        ({"drop": "old_entropy > 2"}, 2, {"old_logprobs", "old_entropy"}, {"old_entropy"}),
        ({"penalties": ["entropy_bonus"]}, 2, {"old_logprobs"}, set()),
        ({"penalties": [Certainty()]}, 1, set(), {"old_entropy"}),
        ({"penalties": ["proxy_kl"]}, 1, {"proxy_logprobs"}, {"proxy_logprobs"}),
    ],
)
def test_a_pass_is_made_for_what_is_read_before_an_update(
    settings: dict[str, Any], updates: int, of_policy: set[str], of_sampler: set[str]
) -> None:
    objective = Objective(**settings)
    for which, expected in (("policy", of_policy), ("sampler", of_sampler)):
        training = TrainingConfig(updates_per_step=updates, old_logprobs=which)  # type: ignore[arg-type]
        assert scored_columns(objective, training) == expected
