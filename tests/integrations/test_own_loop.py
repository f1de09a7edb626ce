"""The loop of docs/trainers.md on one process and on two, with micro-batches of several sizes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlobj.base.ports import free_port

WORKER = Path(__file__).with_name("own_loop_worker.py")
PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
PRESETS = ("20-entropy", "stare", "lopti")
SIZES = (1, 4, 32)


def run(folder: Path, ranks: int) -> None:
    """Run the worker on some ranks, and wait for all."""
    command = [sys.executable, str(WORKER), str(folder), ",".join(PRESETS)]
    command.append(",".join(map(str, SIZES)))
    shared = {**os.environ, "OMP_NUM_THREADS": "1"}
    if ranks > 1:
        shared |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
        shared |= {"MASTER_PORT": str(free_port())}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank)}, **pipes)
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * ranks, "\n".join(said)[-3000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parameters of every preset, size and number of ranks, trained with the page's own code."""
    folder = tmp_path_factory.mktemp("own_loop")
    page = PAGE.read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n(# own_loop\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (folder / "own_loop.py").write_text(code, encoding="utf-8")
    run(folder, 1)
    run(folder, 2)
    return folder


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_do_not_depend_on_micro_batches_or_ranks(
    folder: Path, preset: str, ranks: int
) -> None:
    whole = torch.load(folder / f"{preset}-32-1.pt")
    for size in SIZES:
        found = torch.load(folder / f"{preset}-{size}-{ranks}.pt")
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)


def test_presets_train_differently(folder: Path) -> None:
    """Else the test above could pass with an update that does nothing."""
    found = [torch.load(folder / f"{preset}-32-1.pt") for preset in PRESETS]
    assert all(float((a - b).abs().max()) > 1e-4 for i, a in enumerate(found) for b in found[:i])
