"""What `plan` costs on a large update: STARE-C2 with STAPO's filter, beside one torch.sort.

CPU seconds (process time) at one thread and peak memory above the inputs. The objective takes
three cuts (two by surprisal, one by entropy); a sort of one column is what a single exact cut
costs where it is done by sorting.

    python benchmarks/plan_cost.py [--millions 16] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from rlobj import TokenBatch, load_preset


def make_batch(tokens: int) -> TokenBatch:
    """Float32 columns of responses of 4,000 tokens in groups of eight."""
    generator = torch.Generator().manual_seed(0)
    responses = tokens // 4000
    logprobs = -torch.empty(tokens).exponential_(1.0, generator=generator)
    entropy = torch.empty(tokens).exponential_(2.0, generator=generator)
    return TokenBatch(
        lengths=torch.full((responses,), 4000),
        groups=torch.arange(responses) // 8,
        rewards=(torch.rand(responses, generator=generator) < 0.5).double(),
        logprobs=logprobs,
        entropy=entropy,
        old_entropy=entropy,
    )


def peak_mib() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(what: str, tokens: int) -> dict[str, float]:
    """One operation in this fresh process: CPU seconds and memory above the inputs."""
    torch.set_num_threads(1)
    batch = make_batch(tokens)
    stapo = load_preset("stapo").objective.drop_rule
    assert stapo is not None
    objective = load_preset("stare-c2").objective.drop(stapo)
    state = {**objective.init(), "W": {"value": 1.1}, "M": {"value": 0.9}}
    before = peak_mib()
    start = time.process_time()
    if what == "plan":
        objective.plan(batch.split(8), state)
    else:
        batch.entropy.sort()  # type: ignore[union-attr]
    return {"seconds": time.process_time() - start, "mib": peak_mib() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=int, default=16)
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--one", choices=["plan", "sort"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    tokens = arguments.millions * 1_000_000
    if arguments.one:
        print(json.dumps(measure(arguments.one, tokens)))
        return
    rows = {}
    for what in ("plan", "sort"):
        command = [sys.executable, __file__, "--one", what, "--millions", str(arguments.millions)]
        runs = [json.loads(subprocess.check_output(command)) for _ in range(3)]
        rows[what] = {key: sorted(run[key] for run in runs)[1] for key in runs[0]}
        print(f"{what:5} {rows[what]['seconds']:6.2f} s CPU  {rows[what]['mib']:7.0f} MiB")
    per_token = 4 * tokens / 2**20
    print(f"one float32 column is {per_token:.0f} MiB")
    print(f"plan / sort: {rows['plan']['seconds'] / rows['sort']['seconds']:.2f} in time")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"tokens": tokens, **rows}, file, indent=1)


if __name__ == "__main__":
    main()
