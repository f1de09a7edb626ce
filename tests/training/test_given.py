"""Parts that a Python caller hands in are used, and give the numbers of the configured ones."""

from __future__ import annotations

import pytest
import torch
from runs import metrics, same, weights
from tiny import tiny_config
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlobj.base.errors import ConfigError
from rlobj.models.policy import policy_of
from rlobj.training import CallerInputs, run_training


def loaded(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


def test_a_given_policy_resumes_and_keeps_its_reference(policy, tmp_path):
    """The KL term needs the weights before training, the resumed run those of the checkpoint."""
    kl = {"objective": {"penalties": [{"kind": "kl", "coefficient": 0.1}]}}
    sections = {"training": {"steps": 4}, "checkpoint": {"every": 2}, **kl}
    for name, steps in (("whole", [4]), ("cut", [2, 4])):
        for count in steps:
            inputs = CallerInputs(*loaded(policy))
            part = tiny_config(policy, **{**sections, "training": {"steps": count}})
            resume = count != steps[0]
            run_training(part, tmp_path / name, inputs, resume=resume)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_a_given_model_must_have_float32_weights(policy):
    model, tokenizer = loaded(policy)
    config = tiny_config(policy)
    with pytest.raises(ConfigError, match=r"has bfloat16 weights; expected float32"):
        policy_of(model.bfloat16(), tokenizer, config.model, config.data)
