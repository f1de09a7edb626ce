"""The strategy that a launcher selects, and what is refused before processes start."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from rlobj.base.errors import ConfigError, MissingExtra
from rlobj.training.parallel import open_parallel


def opened(strategy: Any) -> Any:
    return open_parallel(strategy, max_grad_norm=1.0, autocast=None, seed=0)


def test_error_for_zero_without_deepspeed_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'rlobj\[deepspeed\]'"):
        opened("zero2")


def test_an_old_deepspeed_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.18.9")
    with pytest.raises(ConfigError, match=r"found 0\.18\.9.* pip install 'deepspeed>=0\.19\.2'"):
        opened("zero2")


def test_processes_without_an_address_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set"):
        opened("auto")


def test_one_process_has_no_group_and_an_unchanged_environment(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    before = dict(os.environ)
    parallel = opened("ddp")
    assert (parallel.rank, parallel.size, parallel.strategy) == (0, 1, "ddp")
    assert not torch.distributed.is_initialized()
    assert torch.initial_seed() == 0
    parallel.close()
    assert dict(os.environ) == before
