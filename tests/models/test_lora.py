"""Training adapters: what is trained, what is saved, what a merged checkpoint is."""

from __future__ import annotations

import pytest
import torch
from runs import open_trainer, same, weights
from safetensors.torch import load_file
from tiny import eight_steps

from rlobj.runs.checkpoints import newest_checkpoint
from rlobj.training import run_training
from rlobj.training.loop.step import run_step


@pytest.mark.slow
def test_lora_trains_adapters_alone_and_resumes_to_the_same_weights(policy, tmp_path):
    lora = {"lora": {"rank": 4, "alpha": 8.0}}
    config = eight_steps(policy, "lopti", model=lora, training={"steps": 5})
    run_training(config, tmp_path / "whole")
    with open_trainer(config, tmp_path / "cut") as trainer:
        assert trainer.learner.scores.all["reference"].scorer is None
        names = [n for n, p in trainer.policy.model.named_parameters() if p.requires_grad]
        assert names
        assert all(".lora_" in name for name in names)
        for _ in range(4):
            run_step(trainer)
    run_training(config, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    before = load_file(policy / "model.safetensors")
    changed = {n for n, w in weights(tmp_path / "whole").items() if not torch.equal(w, before[n])}
    assert changed
    assert all("_proj." in name for name in changed)


def test_a_merged_checkpoint_is_the_model_with_its_adapter(policy, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    config = eight_steps(policy, "grpo", model={"lora": {"rank": 2}}, training={"steps": 2})
    run_training(config, tmp_path / "run")
    newest = newest_checkpoint(tmp_path / "run")
    base = AutoModelForCausalLM.from_pretrained(policy)
    adapted = PeftModel.from_pretrained(base, str(newest / "adapter"))
    merged = AutoModelForCausalLM.from_pretrained(newest / "model")
    ids = torch.arange(1, 9)[None]
    plain = AutoModelForCausalLM.from_pretrained(policy)(ids).logits
    torch.testing.assert_close(adapted(ids).logits, merged(ids).logits)
    assert not torch.allclose(plain, merged(ids).logits)
