"""The loop of docs/trainers.md on one process and on two, with micro-batches of several sizes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import TEST_MODULES, run_ranks
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen3Config, Qwen3ForCausalLM

import rlobj

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
PRESETS = ("20-entropy", "stare", "lopti")
SIZES = (5, 32)
RESPONSES, WIDTH = 32, 24


def build_model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=64, **sizes, **heads)).double()
    model.lm_head.weight.data *= 60  # likely and unlikely tokens, so that all rules have some
    return model


def make_rollout(seed: int) -> dict[str, torch.Tensor]:
    """Responses whose lengths differ, in groups of eight."""
    torch.manual_seed(seed)
    places = torch.arange(WIDTH)
    return {
        "tokens": torch.randint(64, (RESPONSES, WIDTH)),
        "mask": (places >= 4) & (places < torch.randint(6, WIDTH + 1, (RESPONSES, 1))),
        "ids": torch.arange(RESPONSES),
        "groups": torch.arange(RESPONSES) // 8,
        "rewards": torch.randint(0, 2, (RESPONSES,)).double(),
    }


def share(rollout: dict[str, torch.Tensor], size: int, comm: Any) -> list[dict[str, torch.Tensor]]:
    """This rank's micro-batches: every second response, so that groups span the ranks."""
    rows = torch.arange(comm.rank, RESPONSES, comm.size).split(size)
    return [{name: column[row] for name, column in rollout.items()} for row in rows]


def parameters(loop: Any, preset: str, size: int, comm: Any) -> torch.Tensor:
    """All parameters after two rollouts."""
    model = build_model()
    wrapped = DistributedDataParallel(model) if comm.size > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    objective = rlobj.load_preset(preset).objective.resolve(WIDTH).replace(penalties=())
    state: Any = objective.init()
    for seed in (1, 2):
        batches = share(make_rollout(seed), size, comm)
        state = loop.train_on(objective, wrapped, optimizer, batches, state, comm)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def on_a_rank(folder: Path) -> None:
    """Train with each preset at each size; rank 0 writes PRESET-SIZE-RANKS.pt."""
    sys.path.insert(0, str(folder))
    import own_loop  # pyright: ignore[reportMissingImports]

    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
    comm = rlobj.ProcessGroup()
    for preset in PRESETS:
        for size in SIZES:
            found = parameters(own_loop, preset, size, comm)
            if comm.rank == 0:
                torch.save(found, folder / f"{preset}-{size}-{comm.size}.pt")
    if comm.size > 1:
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parameters of every preset, size and number of ranks, trained with the page's own code."""
    folder = tmp_path_factory.mktemp("own_loop")
    page = PAGE.read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n(# own_loop\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (folder / "own_loop.py").write_text(code, encoding="utf-8")
    for ranks in (1, 2):
        run_ranks([__file__, folder], ranks, timeout=300, **TEST_MODULES)
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


if __name__ == "__main__":  # one of the processes
    on_a_rank(Path(sys.argv[1]))
