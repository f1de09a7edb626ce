"""The verifier as verl's reward, by verl's own loader and reward manager; and verl's scorer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from benchmarks import graders
from benchmarks.embedded_policy import build_tokenizer
from harness import compose_config
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager

from rlobj.integrations import rewards

PATHS = ["pkg://rlobj.integrations.rewards", str(Path(rewards.__file__))]


def configured(path: str) -> Any:
    return compose_config(f"reward.custom_reward_function.path={path}")


@pytest.mark.parametrize("path", PATHS, ids=["package", "file"])
def test_verl_loads_the_verifier(path: str) -> None:
    score = get_custom_reward_fn(configured(path))
    assert score is not None
    found = score(data_source="x", solution_str=r"\boxed{0.5}", ground_truth=r"\frac12")
    assert found["score"] == 1.0


def test_verls_reward_manager_scores_with_the_verifier() -> None:
    tokenizer = build_tokenizer(r"0123456789\boxed{}")
    responses = [r"\boxed{5}", r"\boxed{6}"]
    ids = torch.tensor([tokenizer(text).input_ids for text in responses])
    batch = TensorDict({"responses": ids, "attention_mask": torch.ones_like(ids)}, 2)
    rest = {
        "data_source": numpy.array(["mine", "mine"], dtype=object),
        "reward_model": numpy.array([{"ground_truth": "5"}] * 2, dtype=object),
        "extra_info": numpy.array([{}, {}], dtype=object),
    }
    data = DataProto(batch=batch, non_tensor_batch=rest)

    async def scored() -> list[Any]:
        manager = load_reward_manager(configured(PATHS[0]), tokenizer)
        return [await manager.run_single(data[index : index + 1]) for index in range(2)]

    found = asyncio.run(scored())
    assert [each["reward_score"] for each in found] == [1.0, 0.0]
    assert found[1]["reward_extra_info"]["undecided"] == 0.0
    assert found[1]["reward_extra_info"]["pred"] == "6"


def test_the_benchmark_calls_verls_scorer() -> None:
    pairs = [(said, r"\frac12") for said in (r"\boxed{1/2}", r"\boxed{1/3}", r"\boxed{0.5}")]
    assert graders.verdicts("verl", pairs) == [True, False, True]
