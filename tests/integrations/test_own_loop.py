"""The loop of docs/trainers.md on one process and on two, with micro-batches of several sizes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from forked import run_ranks

WORKER = Path(__file__).with_name("own_loop_worker.py")
PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
PRESETS = ("20-entropy", "stare", "lopti")
SIZES = (1, 4, 32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parameters of every preset, size and number of ranks, trained with the page's own code."""
    folder = tmp_path_factory.mktemp("own_loop")
    page = PAGE.read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n(# own_loop\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (folder / "own_loop.py").write_text(code, encoding="utf-8")
    words = [WORKER, folder, ",".join(PRESETS), ",".join(map(str, SIZES))]
    for ranks in (1, 2):
        run_ranks(words, ranks, timeout=300)
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
