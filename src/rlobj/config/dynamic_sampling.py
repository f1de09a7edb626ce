"""The settings of dynamic sampling."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlobj.base.validation import Model


class DynamicSampling(Model):
    """Drop groups without signal and sample new ones (DAPO, arXiv:2503.14476 eq. 11)."""

    by: Literal["accuracy", "reward"] = "accuracy"
    """keep groups with 0 < accuracy < 1, before reward shaping (accuracy; the reward says what is
    right), or groups with unequal rewards (reward)"""
    max_batches: int = Field(default=10, ge=1)
    """largest number of batches of prompts per step"""
    whole_batches: bool = False
    """false: a further batch has one prompt for each group that is missing, and the step trains on
    the groups that there are in the end; true, as in verl: each batch has prompts for a whole
    step, the step trains on the first `prompts_per_step` groups with a signal, and the run stops
    if there are fewer"""
    oversampling: float = Field(default=1.0, gt=0)
    """with `whole_batches`: prompts of a batch, as a multiple of `prompts_per_step`"""
    allow_fewer: bool = False
    """with `whole_batches`: train on the groups that there are, if they are too few"""
