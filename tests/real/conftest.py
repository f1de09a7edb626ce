"""One run of SmolLM2 that the tests of this folder compare theirs with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from real.sums import short_run

from rlobj.training import run_training


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, removed after the test: a checkpoint of SmolLM2 is 1.6 GB."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="session")
def whole_run(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three steps in one process, sampled with transformers."""
    folder = tmp_path_factory.mktemp("whole")
    run_training(short_run(smollm2, folder), folder / "run")
    yield folder / "run"
    shutil.rmtree(folder)
