"""Divergences from a teacher over the vocabulary, forward and backward, from hidden states.

rlobj's tiles beside TRL's function of all logits and Liger's fused loss, if they are installed; all
in float32 on one thread, each in a process of its own. `top 32` has the teacher's tokens already.
MiB: peak above inputs and outputs.
"""

from __future__ import annotations

import itertools
import os
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import Table, ask, cpu_seconds, main, note, peak_above
from rlobj.objectives.divergences import DivergenceSettings
from rlobj.scoring.divergences import States, score_divergence, top_tokens
from rlobj.scoring.token_scores import head_of, score_tokens

OURS, TRL, LIGER, TOP = "rlobj", "TRL on logits", "Liger fused", "rlobj, top 32"
BETAS = {"reverse": 1.0, "jsd": 0.5}
Tensors = tuple[Tensor, Tensor, Tensor, Tensor]
"""Hidden states and embeddings of the policy, and of the teacher."""


def loss_of(name: str, of: Any, tensors: Tensors, targets: Tensor, top: Any) -> Tensor:
    """The sum of the divergences of all tokens."""
    hidden, weight, states, other = tensors
    if name == TRL:
        trainer = import_module("trl.experimental.gkd.gkd_trainer").GKDTrainer
        logits, teacher = hidden @ weight.T, (states @ other.T).detach()
        return trainer.generalized_jsd_loss(logits[None], teacher[None], beta=BETAS[of])
    if name == LIGER:
        loss = import_module("liger_kernel.chunked_loss").LigerFusedLinearJSDLoss
        settings = {"weight_hard_loss": 0.0, "weight_soft_loss": 1.0, "beta": BETAS[of]}
        return loss(**settings, compiled=False)(hidden, weight, states, other, targets)
    settings = DivergenceSettings(of=of, top=32 if top is not None else None)
    scores = score_tokens(hidden, weight, targets)
    teacher = top or States(states, head_of(states, other)(other, None))
    arguments = head_of(hidden, weight), (weight, None), targets, scores
    return score_divergence(settings, teacher, hidden, *arguments).sum()


def answer(name: str, of: str, rows: int, width: int, vocabulary: int) -> dict[str, float]:
    """CPU seconds of forward and backward, the least of three, and peak MiB."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    torch.manual_seed(0)
    hidden, states = torch.randn(rows, width), torch.randn(rows, width)
    weight, other = (torch.randn(vocabulary, width) / width**0.5 for _ in range(2))
    top = top_tokens(states, head_of(states, other)(other, None), 32, vocabulary)
    targets = torch.randint(vocabulary, (rows,))

    def work() -> None:
        leaves = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
        likely = top if name == TOP else None
        loss_of(name, of, (*leaves, states, other), targets, likely).backward()

    seconds = min(cpu_seconds(work) for _ in range(3))
    harness.return_freed_memory()
    return {"seconds": seconds, "mib": peak_above(work) - (hidden.nbytes + weight.nbytes) / 2**20}


def measure(quick: bool, rounds: int) -> Table:
    """Each installed method; T 1,024 and 4,096, H 256, V 32,000 and 151,936."""
    packages = {TRL: "trl", LIGER: "liger_kernel"}
    names = [n for n in (OURS, TOP, TRL, LIGER) if find_spec(packages.get(n, "torch"))]
    sizes = [(1024, 32_000)] if quick else [(1024, 32_000), (4096, 32_000), (4096, 151_936)]
    rows: list[dict[str, Any]] = []
    for (count, vocabulary), of, name in itertools.product(sizes, BETAS, names):
        note(f"{name}, {of}, {count} x {vocabulary}")
        size: dict[str, Any] = {"rows": count, "width": 256, "vocabulary": vocabulary}
        question = {"name": name, "of": of, **size}
        [*answers] = (ask("benchmarks.divergences", question)[0] for _ in range(rounds))
        text = f"N {count:,}, H 256, V {vocabulary:,}"
        found = {key: median(a[key] for a in answers) for key in answers[0]}
        rows.append({"size": text, "of": of, "method": name, **found})
    columns = {
        **{"size": ("size", ""), "of": ("divergence", ""), "method": ("method", "")},
        **{"seconds": ("CPU s", ".3g"), "mib": ("MiB", ",.0f")},
    }
    facts = {"rounds": rounds, "threads": 1}
    labels = ("size", "of", "method")
    return Table("divergences", columns, rows, facts, labels=labels, bars=("seconds", "mib"))


if __name__ == "__main__":
    main(measure, answer)
