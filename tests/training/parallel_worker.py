"""The program that test_parallel runs with every strategy, in its process or in two others.

    parallel_worker.py STRATEGY,... FOLDER

with RANK, WORLD_SIZE and the like set. Each rank leaves its results in FOLDER/STRATEGY-RANK.json.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rlobj
from rlobj.ranks import ProcessGroup
from rlobj.scoring import PolicyScorer, pad_sequences
from rlobj.training.parallel import Parallel, open_parallel, open_processes
from rlobj.training.parallel.strategies import Replicated

VOCABULARY = 48
GROUP = 4
RESPONSES = 12
END = 5  # good steps
Build = Callable[[torch.dtype | None], Parallel]
OBJECTIVE = rlobj.load_preset("stapo").objective


def tiny_policy(tied: bool = True, **sizes: int) -> Any:
    """Two Qwen3 layers whose distributions are peaked enough for STAPO to drop tokens."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    usual = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    }
    config = Qwen3Config(**{**usual, **sizes}, tie_word_embeddings=tied, dtype="float32")
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    return model.train()


def rollout() -> tuple[rlobj.TokenBatch, list[tuple[list[int], list[int]]]]:
    """Random responses of several lengths, with rewards and without log-probs."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 9, (RESPONSES,), generator=generator).tolist()
    tokens = torch.randint(0, VOCABULARY, (RESPONSES, 12), generator=generator).tolist()
    sequences = [(row[:3], row[3 : 3 + n]) for row, n in zip(tokens, lengths, strict=True)]
    rewards = torch.rand(RESPONSES, generator=generator, dtype=torch.float64)
    table = rlobj.TokenBatch(
        lengths=torch.tensor(lengths),
        groups=torch.arange(RESPONSES) // GROUP,
        ids=torch.arange(RESPONSES),
        rewards=rewards,
        logprobs=torch.zeros(sum(lengths)),
    )
    return table, sequences


def members(parallel: Parallel, step: int) -> list[int]:
    """The responses of this rank: all of them on the first in step 0, then whole groups."""
    size, groups = 1 if step == 0 else parallel.size, RESPONSES // GROUP
    return [i for i in range(RESPONSES) if i // GROUP * size // groups == parallel.rank]


def threes(count: int) -> list[list[int]]:
    """The micro-batches of this number of responses."""
    return [list(range(i, min(i + 3, count))) for i in range(0, count, 3)]


class Session:
    """A policy in training."""

    def __init__(self, parallel: Parallel, model: Any, half: bool = False) -> None:
        self.parallel = parallel
        self.model = model
        self.half = half
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1.0, weight_decay=0.1)
        self.scorer, self.optimizer = parallel.prepare(PolicyScorer(model), optimizer), optimizer

    def score(self, sequences: Sequence[Any]) -> dict[str, Tensor]:
        padded = pad_sequences(sequences, self.parallel.device)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            scores = self.scorer(*padded, temperature=0.9, entropy=True)
        return {"logprobs": scores.logprobs, "entropy": scores.entropy}

    def update(
        self, step: int, *, apply: bool = True, spoil: Callable[[int], float] = lambda rank: 1.0
    ) -> dict[str, Any]:
        """Make one update like the trainer; `spoil(rank)` is a factor on a rank's first loss."""
        parallel, comm = self.parallel, self.parallel.comm
        parallel.set_learning_rate(3e-3 / (step + 1))
        whole, sequences = rollout()
        mine = members(parallel, step)
        table = whole.select(mine)
        parts = threes(len(mine))
        most = max(comm.gather(len(parts)))
        parts += [[] for _ in range(most - len(parts))]
        with torch.no_grad():
            scores = [self.score([sequences[mine[i]] for i in part]) for part in parts]
        columns = {name: torch.cat([s[name] for s in scores]) for name in scores[0]}
        old = (columns["logprobs"] + 0.1 * step).clamp(max=0)
        table = table.replace(**columns, old_logprobs=old)
        tables = [table.select(part, index) for index, part in enumerate(parts)]
        plan = OBJECTIVE.plan(tables, OBJECTIVE.init(), comm)
        total = torch.zeros((), dtype=torch.float64)
        for index, part in enumerate(parts):
            micro = tables[index].replace(**self.score([sequences[mine[i]] for i in part]))
            loss = OBJECTIVE.loss(micro, plan).loss
            total += loss.detach().double()
            factor = spoil(parallel.rank) if index == 0 else 1.0
            parallel.backward(loss * factor, last=index + 1 == most)
        norm = parallel.step(apply)
        rate = self.optimizer.param_groups[0]["lr"]
        return {"loss": float(comm.sum(total)), "norm": norm, "rate": rate}

    def weights(self) -> dict[str, Tensor]:
        named = self.model.named_parameters()
        return {name: self.parallel.full(p).detach().clone() for name, p in named}

    def moments(self) -> dict[str, dict[str, Tensor]]:
        named = self.model.named_parameters()
        return {
            name: {key: value.clone() for key, value in self.parallel.moments(p).items()}
            for name, p in named
        }

    def digest(self) -> str:
        """Hash all bits of the weights and the moments."""
        hashed = hashlib.sha256()
        flat = [*self.weights().values()]
        flat += [value for state in self.moments().values() for value in state.values()]
        for tensor in flat:
            hashed.update(tensor.cpu().contiguous().numpy().tobytes())
        return hashed.hexdigest()

    def save(self, path: Path) -> None:
        weights, moments = self.weights(), self.moments()
        if self.parallel.rank == 0:
            torch.save({"weights": weights, "moments": moments}, path)


def train(parallel: Parallel, folder: Path, strategy: str, mishaps: bool) -> dict[str, Any]:
    """Make five good steps, with optional bad steps after the second."""
    session = Session(parallel, tiny_policy())
    results: dict[str, Any] = {"moments before": [*session.moments().values()].count({})}
    results["steps"] = [session.update(step) for step in range(2)]
    if mishaps:
        results["mishaps"] = {
            "nan on the first rank": mishap(session, lambda rank: torch.nan if rank == 0 else 1.0),
            "inf on the last rank": mishap(session, lambda rank: torch.inf if rank else 1.0),
            "nothing to learn": mishap(session, lambda rank: 1.0, apply=False),
        }
        session.score([])  # a graph without a backward pass
    results["steps"] += [session.update(step) for step in range(2, END)]
    session.save(folder / f"{strategy}.pt")
    results["digest"] = session.digest()
    return results


def mishap(session: Session, spoil: Callable[[int], float], apply: bool = True) -> dict[str, Any]:
    before = session.digest()
    norm = session.update(2, apply=apply, spoil=spoil)["norm"]
    return {"norm": norm, "changed": session.digest() != before}


def variants(build: Build) -> dict[str, Any]:
    """Make two updates of other kinds of policies, with and without half precision."""
    import peft

    def adapted() -> Any:
        settings = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        torch.manual_seed(3)
        return peft.get_peft_model(tiny_policy(), settings)

    def recomputing() -> Any:
        model = tiny_policy(tied=False)
        model.gradient_checkpointing_enable()
        return model

    results: dict[str, Any] = {}
    kinds = {"untied, recomputing": recomputing, "adapters": adapted}
    for name, make in kinds.items():
        parallel = build(None)
        session = Session(parallel, make())
        updates = [session.update(step) for step in range(1, 3)]
        if name == "adapters":
            with torch.no_grad(), session.model.disable_adapter():
                results["reference"] = session.score(rollout()[1])["logprobs"].tolist()
        weights = {key: value.double().sum().item() for key, value in session.weights().items()}
        remembered = [key for key, state in session.moments().items() if state]
        results[name] = {"updates": updates, "weights": weights, "remembered": remembered}
        parallel.close()
    for dtype in (None, torch.bfloat16):
        results[str(dtype)] = arithmetic(build(dtype), half=dtype is not None)
    return results


def arithmetic(parallel: Parallel, half: bool) -> dict[str, Any]:
    """Report the dtype of forward passes, and the result of a policy without sequences."""
    session = Session(parallel, tiny_policy(), half)
    seen = []
    projection = session.model.model.layers[0].mlp.up_proj
    projection.register_forward_hook(lambda *call: seen.append(str(call[-1].dtype)))
    scores = session.score([])
    parallel.backward(scores["logprobs"].sum() * 0, last=True)
    empty = parallel.step(apply=False)
    norm = session.update(1)["norm"]
    dtypes = {str(value.dtype) for value in session.weights().values()}
    parallel.close()
    return {"forward": [*set(seen)], "weights": [*dtypes], "empty": empty, "norm": norm}


def exchange(comm: ProcessGroup) -> dict[str, Any]:
    """Use the process group, and a second one in a thread."""
    rank = comm.rank
    apart = ProcessGroup(torch.device("cpu"), torch.distributed.new_group(backend="gloo"))
    found: dict[str, Any] = {}

    def ask() -> None:
        found["thread"] = apart.gather(rank) + apart.sum(torch.ones(2)).tolist()

    thread = threading.Thread(target=ask)
    thread.start()
    found["integers"] = comm.sum(torch.tensor([2**53 + rank, 1])).tolist()
    found["floats"] = comm.sum(torch.tensor(2.0**-40 + rank, dtype=torch.float64)).item()
    found["gather"] = comm.gather({"rank": rank})
    found["broadcast"] = comm.broadcast(f"from {rank}")
    thread.join()
    return found


def assert_alike(
    folder: Path, ours: str, others: str, tolerance: float, of_moments: float = 1e-5
) -> None:
    """Compare weights with a tolerance, and moments with one that is relative to the largest."""
    one, other = (torch.load(folder / f"{name}.pt") for name in (ours, others))
    assert one["weights"].keys() == other["weights"].keys()
    for name, weight in other["weights"].items():
        torch.testing.assert_close(one["weights"][name], weight, rtol=0, atol=tolerance)
        for key, expected in other["moments"][name].items():
            found, scale = one["moments"][name][key], float(expected.abs().max())
            torch.testing.assert_close(found, expected, rtol=0, atol=of_moments * scale)


def main(strategies: Sequence[str], folder: Path) -> None:
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        accelerator = open_processes(stack, grouped=True)
        for strategy in strategies:
            if strategy.startswith("zero"):
                from rlobj.training.parallel import zero

                # Without this, the small policy would not be sharded and would use one bucket.
                zero.PERSISTENT_ELEMENTS, zero.BUCKET_ELEMENTS = 0, 1000
            name, _, where = strategy.partition(" in ")
            offload = where == "host memory"
            settings = {"accelerator": accelerator, "offload": offload, "seed": 0}
            build = functools.partial(open_parallel, name, max_grad_norm=0.5, **settings)
            results[strategy] = trainings(
                lambda autocast, build=build: build(autocast=autocast), folder, strategy
            )
        comm = ProcessGroup(accelerator.device)
        results["exchange"] = exchange(comm)
        path = folder / f"{strategies[0]}-{comm.rank}.json"
        path.write_text(json.dumps(results), encoding="utf-8")
        comm.gather(None)


def plain(folder: Path) -> None:
    """The trainings in this process alone, with plain AdamW."""
    with contextlib.ExitStack() as stack:
        accelerator = open_processes(stack, grouped=False)

        def build(autocast: torch.dtype | None) -> Replicated:
            return Replicated(accelerator, "ddp", max_grad_norm=0.5)

        results = trainings(build, folder, "plain", mishaps=False)
    (folder / "plain.json").write_text(json.dumps(results), encoding="utf-8")


def trainings(build: Build, folder: Path, strategy: str, mishaps: bool = True) -> dict[str, Any]:
    """All trainings with a strategy."""
    parallel = build(None)
    results = train(parallel, folder, strategy, mishaps)
    parallel.close()
    return {**results, "variants": variants(build)}


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        plain(Path(sys.argv[2]))
    else:
        main(sys.argv[1].split(","), Path(sys.argv[2]))
