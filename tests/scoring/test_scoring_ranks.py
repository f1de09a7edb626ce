"""Scoring in two processes: the gradient equals that of the model's logits in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scoring_ranks import POLICIES, policy, row_weights
from scoring_tools import SEQUENCES, plain_samples

from rlobj.base.ports import free_port

pytest.importorskip("peft")
WORKER = Path(__file__).with_name("scoring_ranks.py")
STRATEGIES = [
    pytest.param("ddp", marks=pytest.mark.slow),
    pytest.param("fsdp2", marks=pytest.mark.slow),
    pytest.param("zero3", marks=[pytest.mark.slow, pytest.mark.deepspeed]),
]


def start(strategies: str, folder: Path) -> Path:
    """Run the worker on two ranks."""
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    runs = [
        subprocess.Popen(
            [sys.executable, str(WORKER), strategies, str(folder)],
            env={**shared, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ("0", "1")
    ]
    outputs = [run.communicate(timeout=600)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], "\n".join(outputs)
    return folder


@pytest.fixture(scope="module")
def torchs_own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start("ddp,fsdp2", tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def deepspeeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start("zero3", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_gradient_over_two_ranks_equals_that_of_plain_logits_in_one_process(
    strategy, name, request
):
    folder = request.getfixturevalue("deepspeeds" if strategy == "zero3" else "torchs_own")
    found = torch.load(folder / f"{strategy}.pt")[name]
    model = policy(name)
    weights = torch.cat([row_weights(index) for index in range(len(SEQUENCES))], 1)
    (plain_samples(model, 0.8) * weights).sum().backward()
    expected = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    head = [key for key in expected if "lm_head" in key]
    assert len(head) == (name == "untied")
    for key, gradient in expected.items():
        scale = float(gradient.abs().max())
        assert scale > 1e-4, key
        torch.testing.assert_close(found[key], gradient, rtol=0, atol=1e-5 * scale, msg=key)
