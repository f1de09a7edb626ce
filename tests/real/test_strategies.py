"""Three steps of SmolLM2 in processes, with adapters, with vLLM and with a teacher."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from forked import WITH_VLLM
from real.sums import short_run
from runs import metrics, ranks, weights, write_config
from safetensors.torch import load_file
from served import ONE_PROCESS, Served
from vllm_tools import NEEDS_VLLM, TOLERANCE

from rlobj.runs.tables import read_tables
from rlobj.training import run_training

pytestmark = pytest.mark.slow
CACHE = 64 << 20
"""Bytes of key-value cache: 1,400 tokens of SmolLM2."""
WHOLE = {"skip_inactive": False}
"""Settings with which all tokens are scored, also those of groups without a signal."""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_make_the_steps_of_one(
    smollm2: Path, whole_run: Path, scratch: Path, strategy: str
) -> None:
    file = write_config(short_run(smollm2, scratch), scratch / "run.yaml")
    words = ["train", "--config", file, "--out", scratch / "run", "--strategy", strategy]
    ranks(words, timeout=600)
    for found, expected in zip(metrics(scratch / "run"), metrics(whole_run), strict=True):
        assert found["reward/mean"] == pytest.approx(expected["reward/mean"], abs=1e-9)
        for name in ("policy/entropy", "train/grad_norm"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4), name


def test_lora_begins_with_the_policy_and_changes_projections_alone(
    smollm2: Path, whole_run: Path, scratch: Path
) -> None:
    training = {"learning_rate": 1e-3}
    config = short_run(smollm2, scratch, model={"lora": {"rank": 4}}, training=training)
    found = run_training(config, scratch / "run").history
    first = metrics(whole_run)[0]
    assert len(found) == 3
    assert found[0]["reward/mean"] == first["reward/mean"]  # the same responses
    assert found[0]["policy/entropy"] == pytest.approx(first["policy/entropy"], abs=1e-5)
    before, after = load_file(smollm2 / "model.safetensors"), weights(scratch / "run")
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert len(changed) == 30 * 7
    assert all("_proj." in name for name in changed)


def check_steps(run: Path) -> None:
    """Three steps, each sampled from the weights that it began with.

    Older weights would be off by more than 1e-3, as those of the teacher are in the last test.
    """
    updates = list(read_tables(run, [1, 2, 3]))
    assert len(updates) == 3
    for update in updates:
        assert update.table.sampler_logprobs is not None
        gaps = update.table.sampler_logprobs - update.table.logprobs
        assert float(gaps.abs().max()) < TOLERANCE


@pytest.mark.vllm
@pytest.mark.skipif(**NEEDS_VLLM)
def test_vllm_in_the_process_has_the_weights_of_each_step(smollm2: Path, scratch: Path) -> None:
    sampling = {"engine": "vllm", "vllm": {"kv_cache_bytes": CACHE}}
    config = short_run(smollm2, scratch, sampling=sampling, training=WHOLE)
    file = write_config(config, scratch / "run.yaml")
    ranks(["train", "--config", file, "--out", scratch / "run"], 1, timeout=600, **WITH_VLLM)
    check_steps(scratch / "run")


@pytest.mark.vllm
@pytest.mark.skipif(**NEEDS_VLLM)
def test_a_server_has_the_weights_of_each_step(smollm2: Path, scratch: Path) -> None:
    arguments = {**ONE_PROCESS, "max_model_len": 256, "kv_cache_memory_bytes": CACHE}
    cache = str(scratch / "cache")
    server = Served(smollm2, scratch, fork=True, arguments=arguments, XDG_CACHE_HOME=cache)
    try:
        server.await_text("Ready.")
        sampling = {"engine": "vllm-server", "server": {"url": server.url}}
        config = short_run(smollm2, scratch, sampling=sampling, training=WHOLE)
        file = write_config(config, scratch / "run.yaml")
        words = ["train", "--config", file, "--out", scratch / "run"]
        ranks(words, 1, timeout=600, **server.environment)
    finally:
        server.end()
    check_steps(scratch / "run")


def test_a_teacher_that_is_the_same_model_differs_only_after_the_first_step(
    smollm2: Path, scratch: Path
) -> None:
    scores = {"teacher": {"model": str(smollm2)}}
    objective = {"shape": "advantage + 0.3 * clip(teacher_gap, -5, 5)"}
    run_training(short_run(smollm2, scratch, scores=scores, objective=objective), scratch / "run")
    gaps = []
    for update in read_tables(scratch / "run", [1, 2, 3]):
        table = update.table
        gaps.append(float((table.columns["teacher_logprob"] - table.logprobs).abs().max()))
    assert gaps[0] == 0
    assert min(gaps[1:]) > 1e-3
