"""Parts that a Python caller hands in are used, and give the numbers of the configured ones."""

from __future__ import annotations

import pytest
import torch
from runs import metrics, same, weights
from tiny import tiny_config
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlobj.base.errors import ConfigError
from rlobj.data import load_problems
from rlobj.models.policy import policy_of
from rlobj.rewards import Exact
from rlobj.samplers import TransformersSampler
from rlobj.training import Given, run_training

SECTIONS = {"training": {"steps": 2}, "evaluation": {"every": 1, "samples": 1, "problems": 8}}


def loaded(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


def test_a_run_of_given_parts_equals_the_configured_run(policy, tmp_path):
    config = tiny_config(policy, **SECTIONS)
    run_training(config, tmp_path / "configured")
    made = policy_of(*loaded(policy), config.model, config.data)
    sampler = TransformersSampler(made.model, made.tokenizer)
    given = Given(
        policy=made,
        train_problems=load_problems(config.data, "train"),
        test_problems=load_problems(config.data, "test"),
        grader=config.rewards.open(),
        sampler=sampler,
    )
    elsewhere = config.model_copy(
        update={
            "data": config.data.model_copy(update={"source": "nowhere"}),
            "model": config.model.model_copy(update={"name": "nowhere"}),
            "rewards": Exact(),
        }
    )
    run_training(elsewhere, tmp_path / "given", given=given)
    assert metrics(tmp_path / "given") == metrics(tmp_path / "configured")
    saved = weights(tmp_path / "given")
    assert same(saved, weights(tmp_path / "configured"))
    trained = made.model.state_dict()
    assert all(torch.equal(trained[name], tensor) for name, tensor in saved.items())


def test_a_given_policy_resumes_and_keeps_its_reference(policy, tmp_path):
    """The KL term needs the weights before training, the resumed run those of the checkpoint."""
    kl = {"objective": {"penalties": [{"kind": "kl", "coefficient": 0.1}]}}
    sections = {"training": {"steps": 4}, "checkpoint": {"every": 2}, **kl}
    config = tiny_config(policy, **sections)
    for name, steps in (("whole", [4]), ("cut", [2, 4])):
        for count in steps:
            made = policy_of(*loaded(policy), config.model, config.data)
            part = tiny_config(policy, **{**sections, "training": {"steps": count}})
            resume = count != steps[0]
            run_training(part, tmp_path / name, resume=resume, given=Given(policy=made))
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_a_given_model_must_have_float32_weights(policy):
    model, tokenizer = loaded(policy)
    config = tiny_config(policy)
    with pytest.raises(ConfigError, match=r"has bfloat16 weights; expected float32"):
        policy_of(model.bfloat16(), tokenizer, config.model, config.data)
