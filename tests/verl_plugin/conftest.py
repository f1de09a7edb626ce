"""The processes that the tests of the verl plugin share. Run them by .ci/verl."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if find_spec("verl") is None:
    collect_ignore_glob = ["test_*.py"]  # they need an environment of their own

if TYPE_CHECKING:
    from harness import Workers


@pytest.fixture(scope="session")
def sharp_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy whose distributions differ from token to token."""
    import torch
    from tiny import save_tiny_policy
    from transformers import AutoModelForCausalLM

    folder = save_tiny_policy(tmp_path_factory.mktemp("policy"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(3)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=[1, 2], ids=["one process", "two processes"])
def workers(sharp_policy: Path, request: pytest.FixtureRequest) -> Iterator[Workers]:
    """verl's workers, in one process and then in two."""
    from harness import run_config, start

    group = start(run_config(sharp_policy), request.param)
    yield group
    group.stop()


one_process = pytest.mark.parametrize("workers", [1], indirect=True, ids=["one process"])
two_processes = pytest.mark.parametrize("workers", [2], indirect=True, ids=["two processes"])


@pytest.fixture
def preset(tmp_path: Path) -> Callable[[str], str]:
    """Write a preset of the test's own; return its path."""

    def write(text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write
