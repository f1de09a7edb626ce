"""One rank of the loop in docs/trainers.md: trains with each preset at each size of micro-batches.

python own_loop_worker.py FOLDER PRESET,... SIZE,...

FOLDER has own_loop.py. Rank 0 writes PRESET-SIZE-RANKS.pt with the parameters after two updates.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen3Config, Qwen3ForCausalLM

import rlobj

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


def main(folder: Path, presets: list[str], sizes: list[int]) -> None:
    sys.path.insert(0, str(folder))
    import own_loop  # pyright: ignore[reportMissingImports]

    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
    comm = rlobj.ProcessGroup()
    for preset in presets:
        for size in sizes:
            found = parameters(own_loop, preset, size, comm)
            if comm.rank == 0:
                torch.save(found, folder / f"{preset}-{size}-{comm.size}.pt")
    if comm.size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), [int(size) for size in sys.argv[3].split(",")])
