"""Engines beside each other: sampling, weight syncs, steps and memory by strategy.

Every number is measured in a process of its own, the repetitions of what is compared in turn; the
ratio is to the first line of its block. Models have random weights and the embedded tokenizer.

    python benchmarks/engines.py [--parts sampling sync steps] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from rlobj.config.embedded_profile import SCRATCH_PROFILE
from rlobj.config.presets import load_preset
from rlobj.config.run_config import RunConfig, build_config
from rlobj.models.embedded import build_policy, build_tokenizer
from rlobj.samplers import Sampler, SamplingSettings, Sent, TransformersSampler, eos_ids

SHAPES = {"0.08M": (64, 2), "5M": (256, 5), "27M": (512, 7), "100M": (1024, 7)}
"""Hidden size and layers, by the number of parameters."""
PARTS = ("sampling", "sync", "steps")
REPEATS = 5
STRATEGIES = ("ddp", "zero1", "zero2", "zero3")


def save_model(folder: Path, size: str) -> Path:
    """A random Qwen3 of a size, with tokenizer."""
    from transformers import Qwen3ForCausalLM

    hidden, layers = SHAPES[size]
    config = build_policy(0).config
    config.hidden_size, config.num_hidden_layers = hidden, layers
    config.num_attention_heads = config.num_key_value_heads = max(hidden // 64, 2)
    config.head_dim = hidden // config.num_attention_heads
    config.intermediate_size, config.max_position_embeddings = 3 * hidden, 256
    config.layer_types = ["full_attention"] * layers
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder / size)
    build_tokenizer().save_pretrained(folder / size)
    return folder / size


def open_sampler(engine: str, folder: Path) -> tuple[Any, Sampler]:
    """The trainer's model, and a sampler with weights of its own."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if engine == "transformers":
        copy = AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)
        return model, TransformersSampler(copy, tokenizer, own_copy=True)
    from rlobj.samplers.vllm import VllmSampler, VllmSettings

    eos = eos_ids(model, tokenizer)
    settings = VllmSettings()
    return model, VllmSampler(
        str(folder), tokenizer, eos=eos, settings=settings, dtype=torch.float32
    )


def measure_sampling(engine: str, folder: Path) -> dict[str, float]:
    """Tokens a second: 64 prompts, 8 responses each, up to 64 tokens."""
    model, sampler = open_sampler(engine, folder)
    tokenizer = build_tokenizer()
    prompts = [tokenizer(f"{i % 10}+{i // 10 % 10}=").input_ids for i in range(64)]
    settings = SamplingSettings(max_tokens=64)
    sampler.sync(model.named_parameters(), 1)
    speeds = []
    for repeat in range(REPEATS if SHAPES[folder.name][0] < 1024 else 2):
        start = time.perf_counter()
        seeds = [1000 * repeat + i for i in range(64)]
        groups = sampler.sample(prompts, count=8, settings=settings, seeds=seeds)
        tokens = sum(len(sample.token_ids) for group in groups for sample in group)
        speeds.append(tokens / (time.perf_counter() - start))
    sampler.close()
    return {"tokens_per_second": statistics.median(speeds[1:]), "first": speeds[0]}


def measure_sync(engine: str, folder: Path) -> dict[str, float]:
    """Seconds for one checked sync."""
    model, sampler = open_sampler(engine, folder)
    seconds = []
    for version in range(REPEATS):
        start = time.perf_counter()
        sampler.sync(Sent(model.named_parameters(), sampler.dtype), version)
        sampler.received()
        seconds.append(time.perf_counter() - start)
    sampler.close()
    return {"seconds": statistics.median(seconds)}


def step_config(folder: Path, strategy: str) -> RunConfig:
    """STAPO with two updates a step, 64 responses of up to 32 tokens."""
    mine = {
        "model": {"name": str(folder)},
        "sampling": {"max_tokens": 32, "prompts_per_step": 8},
        "training": {"steps": 99, "updates_per_step": 2, "strategy": strategy},
        "evaluation": {"every": 0},
        "checkpoint": {"every": 0},
        "output": {"samples_every": 0, "tokens_every": 0},
    }
    return build_config(
        [("stapo", load_preset("stapo").config), ("profile", SCRATCH_PROFILE), ("benchmark", mine)]
    )


def measure_steps(strategy: str, folder: Path, report: Path) -> None:
    """One rank: medians of the phases of a step, and the largest resident size."""
    from rlobj.training.loop.opening import open_parts
    from rlobj.training.loop.step import run_step

    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        with open_parts(step_config(folder, strategy), out) as parts:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for _ in range(REPEATS + 1):
                run_step(parts)
            if parts.comm.rank == 0:
                lines = parts.run.lines()[1:]
                keys = ("time/step", "time/sampling", "time/updating", "time/syncing")
                row = {key: statistics.median(line[key] for line in lines) for key in keys}
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                row |= {"opened_mib": before / 1024, "peak_mib": peak / 1024}
                report.write_text(json.dumps(row))


def child(*words: str) -> dict[str, Any]:
    """This script again, for one measurement."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, "--report", file.name, "--one", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{words}: {done.stderr[-3000:]}")
        return json.loads(Path(file.name).read_text())


def one(words: list[str], report: Path) -> None:
    """What a child does."""
    kind, engine, folder = words[0], words[1], Path(words[2])
    if kind == "ranks":
        from rlobj.training.parallel.launcher import launch

        program = (sys.executable, __file__, "--report", str(report), "--one", "steps")
        raise SystemExit(launch([engine, str(folder)], int(words[3]), program=program))
    if kind == "steps":
        measure_steps(engine, folder, report)
        return
    measure = {"sampling": measure_sampling, "sync": measure_sync}[kind]
    report.write_text(json.dumps(measure(engine, folder)))


def compare(part: str, folder: Path) -> list[dict[str, Any]]:
    """All measurements of a part, printed as they come."""
    rows = []
    if part == "steps":
        for size in ("5M", "27M"):
            cases = [("ddp", 1), *((strategy, 2) for strategy in STRATEGIES)]
            for strategy, processes in cases:
                words = ["ranks", strategy, str(folder / size), str(processes)]
                rows.append({"size": size, "what": f"{strategy} x{processes}", **child(*words)})
                show(part, rows, "time/step")
        return rows
    sizes = ("0.08M", "100M") if part == "sampling" else tuple(SHAPES)
    for size in sizes:
        for engine in ("transformers", "vllm"):
            row = {"size": size, "what": engine, **child(part, engine, str(folder / size))}
            rows.append(row)
            show(part, rows, "tokens_per_second" if part == "sampling" else "seconds")
    return rows


def show(part: str, rows: list[dict[str, Any]], key: str) -> None:
    row = rows[-1]
    base = next(other for other in rows if other["size"] == row["size"])
    more = f"  peak {row['peak_mib']:.0f} MiB" if "peak_mib" in row else ""
    ratio = row[key] / base[key]
    label = f"{part:9} {row['size']:>6} {row['what']:14}"
    print(f"{label} {key} {row[key]:.4g}  ratio {ratio:.2f}{more}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--json", help="also write the rows to this file")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one, arguments.report)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for size in SHAPES:
            save_model(folder, size)
        rows = {part: compare(part, folder) for part in arguments.parts}
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
