"""What the functions for slime refuse. benchmarks/slime.py measures them in slime itself."""

from __future__ import annotations

import re
from argparse import Namespace
from typing import Any

import pytest
import torch

from rlobj.base.errors import BatchError, ConfigError
from rlobj.integrations import slime


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slime, "_training", None)


def refused(preset: str | None = "dapo-loss", columns: Any = (), **settings: Any) -> str:
    """The message of the error that slime's first rollout gets."""
    args = Namespace(rlobj=preset, rollout_max_response_len=8, **settings)
    with pytest.raises(ConfigError) as error:
        slime.plan_rollout(args, {name: [torch.zeros(3)] for name in ("log_probs", *columns)})
    return str(error.value)


def test_a_missing_objective_is_said_with_what_to_write() -> None:
    assert "`rlobj: stapo` to the file of --custom-config-path" in refused(None)


@pytest.mark.parametrize("name", list(slime._REFUSED))
def test_settings_that_would_act_beside_the_objective_are_refused(name: str) -> None:
    value = 2 if name == "context_parallel_size" else True
    assert f"slime's {name} is {value}; expected" in refused(**{name: value})


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ("20-entropy", "'entropy'.*Pass --use-rollout-entropy"),
        ("lp-reg", "does not provide the column 'proxy_logprobs'"),
        ("tis", "does not provide the column 'sampler_logprobs'"),
        ("lopti", "lopti has 2 phases of updates"),
    ],
)
def test_objectives_that_slime_cannot_serve_are_refused(preset: str, message: str) -> None:

    assert re.search(message, refused(preset), re.DOTALL)


def test_an_entropy_bonus_is_refused_because_its_gradient_would_be_lost(tmp_path: Any) -> None:
    file = tmp_path / "bonus.yaml"
    file.write_text(
        "base: dapo-loss\nobjective: {penalties: [{kind: entropy_bonus, coefficient: 0.1}]}\n"
    )
    assert "reads the entropy with its gradient" in refused(str(file), ["entropy"])


def test_a_micro_batch_that_was_not_planned_is_an_error() -> None:
    with pytest.raises(BatchError, match="does not belong to one step that was planned"):
        slime.loss(Namespace(), {"advantages": [torch.zeros(3)]}, torch.zeros(1, 3, 4), sum)


def test_a_mask_with_a_weight_is_refused() -> None:
    """A custom generate function may return any loss mask."""
    data = {"loss_masks": [torch.tensor([1, 0]), torch.tensor([1.0, 0.25])]}
    with pytest.raises(BatchError, match=r"mask is 0\.25 at position 1; expected 1 at trained"):
        slime._masks(data)
