"""What a weight transfer costs with LoRA: the adapter alone, or all weights with it added.

SmolLM2-135M in float32 with adapters of rank 16 on all linear layers; vLLM in the process, and a
server of one worker that reads files in shared memory. Every arm sends the weights, moves the
adapter, and sends it again. 'MiB' is what is sent, 'transfer' is `Sampler.sync` with the digests
of what is sent, 'with checks' `Synchronizer.push` and `check`, as a step does them: CPU seconds of
all processes, and the wall time of a machine that others used; medians of the transfers after the
first, which is a row of its own. 'gap': the largest |Δ log-prob| of samples drawn afterwards, in
nats.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Table, ask, main, of_tests
from benchmarks.real_model import real_model

RANK = 16
COLUMNS = {
    "engine": ("engine", ""),
    "sync": ("`model.lora.sync`", ""),
    "which": ("transfer", ""),
    "mib": ("MiB", ".1f"),
    "transfer": ("transfer, CPU s", ".2f"),
    "whole": ("with checks, CPU s", ".2f"),
    "wall": ("with checks, wall s", ".2f"),
    "gap": ("gap", ".1e"),
}


def cpu_seconds() -> float:
    """CPU seconds of this process and all below it, also of those that have ended."""
    import psutil

    here = psutil.Process()
    processes = (here, *here.children(recursive=True))
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def measure(quick: bool, rounds: int) -> Table:
    """All arms, each in a process of its own."""
    rows: list[dict[str, Any]] = []
    for engine in ("vllm", "vllm-server"):
        for sync in ("merged", "adapter"):
            question = {"engine": engine, "sync": sync, "rounds": 2 if quick else rounds + 1}
            [found] = ask("benchmarks.adapters", question)
            arm = {"engine": engine, "sync": sync, "gap": found["gap"]}
            first, *later = found["transfers"]
            rows.append({**arm, "which": "first", **first})
            rows.append(
                {**arm, "which": "later", **{k: median(x[k] for x in later) for k in first}}
            )
    return Table("adapters", COLUMNS, rows, {"rank": RANK}, reading=(__doc__ or "").strip())


def answer(engine: str, sync: str, rounds: int) -> dict[str, Any]:
    """The transfers of one arm."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlobj.models.adapters import adapter_weights, with_adapters
    from rlobj.models.policy import Policy
    from rlobj.samplers import SamplingSettings
    from rlobj.samplers.syncing import Synchronizer
    from rlobj.settings.run_config import LoraConfig

    folder, tools = real_model(), of_tests("vllm_tools")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = with_adapters(model.requires_grad_(False), LoraConfig(rank=RANK), None)
    policy = Policy(model, tokenizer, str(folder), None, "", "")
    trained = torch.nn.ParameterList(p for p in model.parameters() if p.requires_grad)
    alone, transfers = sync == "adapter", []
    with opened(engine, folder, tokenizer, model, RANK if alone else 0) as sampler:
        seconds = [0.0]
        send = sampler.sync

        def timed(weights: Any, version: int) -> None:
            began = cpu_seconds()
            send(weights, version)
            seconds[0] = cpu_seconds() - began

        sampler.sync = timed
        synchronizer = Synchronizer(
            sampler,
            lambda: policy.weights(lambda p: p.detach(), merged=not alone),
            (lambda: adapter_weights(model, lambda p: p.detach(), scaled=True)) if alone else None,
        )
        for version in range(rounds):
            tools.jitter(trained, seed=version, scale=1e-3)
            began, cpu = time.perf_counter(), cpu_seconds()
            synchronizer.push(version)
            synchronizer.check()
            spent = {"whole": cpu_seconds() - cpu, "wall": time.perf_counter() - began}
            mib = sum(tensor.nbytes for _, tensor in sent(policy, alone, version)) / 2**20
            transfers.append({"mib": mib, "transfer": seconds[0], **spent})
        prompts = [tokenizer(f"{n} + {n + 3} =").input_ids for n in range(4)]
        settings = SamplingSettings(max_tokens=16)
        found = sampler.sample(prompts, count=2, settings=settings, seeds=range(4))
        gap = tools.gap(model, [each for group in found for each in group])
    return {"transfers": transfers, "gap": gap}


def sent(policy: Any, alone: bool, version: int) -> Iterator[tuple[str, Any]]:
    """The tensors of a transfer."""
    from rlobj.models.adapters import adapter_weights

    if alone and version:
        return adapter_weights(policy.model, lambda p: p.detach())
    return policy.weights(lambda p: p.detach(), merged=not alone)


@contextlib.contextmanager
def opened(engine: str, folder: Path, tokenizer: Any, model: Any, rank: int) -> Iterator[Any]:
    """vLLM with the model of a folder."""
    import torch

    from rlobj.base.addresses import free_port
    from rlobj.samplers.vllm import (
        Server,
        ServerSettings,
        VllmSampler,
        VllmServerSampler,
        VllmSettings,
    )

    short = {"max_model_len": 512}
    given: dict[str, Any] = {"eos": [tokenizer.eos_token_id], "lora_rank": rank}
    with contextlib.ExitStack() as stack:
        if engine == "vllm":
            settings = VllmSettings(extra=short)
            given |= {"settings": settings, "dtype": torch.float32}
            sampler: Any = VllmSampler(str(folder), tokenizer, **given)
        else:
            server = Server(str(folder), port=free_port(), arguments=short, lora_rank=rank)
            stack.enter_context(server).wait()
            settings = ServerSettings(url=server.url)
            sampler = VllmServerSampler(settings, tokenizer, model_config=model.config, **given)
        with contextlib.closing(sampler):
            yield sampler


if __name__ == "__main__":
    main(measure, answer)
