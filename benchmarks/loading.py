"""The host memory that ranks need to load a model: whole before it is sharded, and in parts.

A random model is saved as safetensors, loaded by every rank and prepared for training, which
allocates moments only with zero3. On CPUs, the shards themselves are in host memory as well.
"""

from __future__ import annotations

import re
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness import Table, asked, main, medians, return_freed_memory

SIZES = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6}
SMALL = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6}
VOCABULARY = 32_000


def save(folder: str, dtype: str, sizes: dict[str, int]) -> float:
    """Save a random model; its MiB in float32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    heads: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
    config = Qwen3Config(**{**sizes, **heads}, vocab_size=VOCABULARY, tie_word_embeddings=False)
    model: Any = Qwen3ForCausalLM(config).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    return sum(each.numel() for each in model.parameters()) / 2**18


class Peak(threading.Thread):
    """The largest memory of this process, in MiB: its own, and its part of pages of files."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.own = self.files = 0.0
        self.over = threading.Event()

    def look(self) -> tuple[float, float]:
        """The memory now."""
        text = Path("/proc/self/smaps_rollup").read_text("ascii")
        found = dict(re.findall(r"^(Pss_\w+):\s+(\d+)", text, re.M))
        return int(found["Pss_Anon"]) / 1024, int(found["Pss_File"]) / 1024

    def run(self) -> None:
        """Look until it is over."""
        while not self.over.wait(0.02):
            own, files = self.look()
            self.own, self.files = max(self.own, own), max(self.files, files)


def answer(folder: str, strategy: str, parts: bool) -> dict[str, float]:
    """The peak of this rank while it loads and prepares the model, and what it has then."""
    import torch

    from rlobj.models.hollow import reading
    from rlobj.models.loading import load_model
    from rlobj.scoring import PolicyScorer
    from rlobj.settings.run_config import ModelConfig
    from rlobj.training.parallel import open_parallel

    return_freed_memory()
    with tempfile.TemporaryDirectory() as tiny:  # imports what will be needed
        save(tiny, "float32", {**SMALL, "hidden_size": 16, "num_hidden_layers": 1})
        load_model(ModelConfig(), tiny, hollow=True)
    parallel = open_parallel(strategy, max_grad_norm=1.0, autocast=None, seed=0)
    torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
    watch = Peak()
    before, files = watch.look()
    watch.start()
    model: Any = load_model(ModelConfig(), folder, device=parallel.device, hollow=parts)
    with reading(model):
        scorer = PolicyScorer(model)
    parallel.prepare(scorer, torch.optim.AdamW(model.parameters(), lr=1e-6))
    watch.over.set()
    watch.join()
    parallel.close()
    return {
        "peak": watch.own - before,
        "after": watch.look()[0] - before,
        "files": watch.files - files,
    }


def measure(quick: bool, rounds: int) -> Table:
    """Peaks of one process, and of 2 and 4 ranks, whole and in parts."""
    sizes, rows = SMALL if quick else SIZES, []
    strategies = ("fsdp2", "zero3") if find_spec("deepspeed") else ("fsdp2",)
    with tempfile.TemporaryDirectory() as place:
        mib = save(place, "bfloat16", sizes)
        counts, ways = (2,) if quick else (2, 4), {"whole": False, "in parts": True}
        ranks = {("ddp", 1, "whole"): 1}
        ranks |= {(name, n, way): n for name in strategies for n in counts for way in ways}
        questions = {
            point: {"folder": place, "strategy": point[0], "parts": ways[point[2]]}
            for point in ranks
        }
        for point, answers in asked("benchmarks.loading", questions, rounds, ranks).items():
            row = dict(zip(("strategy", "ranks", "loaded"), point, strict=True))
            rows.append({**row, **medians(answers)})
    columns = {name: (name, "") for name in ("strategy", "ranks", "loaded")}
    columns |= {
        "peak": ("peak MiB", ",.0f"),
        "after": ("MiB after", ",.0f"),
        "files": ("MiB of files", ",.0f"),
    }
    title = (
        f"Host memory of the rank with the most, for a model of {mib:,.0f} MiB in "
        "float32 from a file in bfloat16, without imports: the peak while it is loaded and "
        "prepared, what stays, and the pages of files, which the system can drop."
    )
    settings = {**sizes, "vocabulary": VOCABULARY, "rounds": rounds}
    return Table("loading", columns, rows, settings, ("strategy", "ranks"), reading=title)


if __name__ == "__main__":
    main(measure, answer)
