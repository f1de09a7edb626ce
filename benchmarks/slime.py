"""Is the gradient of a step in slime that of rlobj alone, at any micro-batch and on two ranks?

slime's schedule, data iterator, log-probs, advantages and loss, and Megatron's forward and backward
passes, on a CPU; the policy is a tiny bigram model. The difference is relative to the norm of the
gradient that rlobj computes from one table of the whole step.

slime is a source checkout (its name on PyPI is another package), megatron-core is on PyPI:

    PYTHONPATH=SLIME_CHECKOUT python -m benchmarks.slime
"""

from __future__ import annotations

import os
from argparse import Namespace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from benchmarks.harness import Table, ask, main
from rlobj import TokenBatch, load_preset

VOCABULARY, RESPONSES, PROMPT = 64, 32, 4
PRESETS = ("dapo-loss", "20-entropy", "stapo", "stare", "clip-cov", "gspo", "dr-grpo")


class OnCpu(TorchFunctionMode):
    """Makes tensors on the CPU where Megatron's schedule asks for a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") == "cuda":
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


def build_model() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Tanh(), nn.Linear(16, VOCABULARY))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def make_rollout() -> dict[str, list[Any]]:
    """Responses whose lengths differ, in groups of eight, as slime's rollout manager has them."""
    torch.manual_seed(1)
    lengths = torch.randint(5, 60, (RESPONSES,)).tolist()
    rewards = torch.randint(0, 2, (RESPONSES,)).float().tolist()
    masks = [(torch.rand(n) < 0.9).int() for n in lengths]
    return {
        "tokens": [torch.randint(VOCABULARY, (PROMPT + n,)) for n in lengths],
        "response_lengths": lengths,
        "total_lengths": [PROMPT + n for n in lengths],
        "loss_masks": masks,
        "raw_reward": rewards,
        "local_raw_reward": rewards,
        "rewards": rewards,
        "rollout_mask_sums": [mask.sum().float() for mask in masks],
    }


def settings(preset: str, micro: int, steps: int) -> Namespace:
    """The settings of slime that are read here."""
    switched_off = (
        "use_rollout_logprobs",
        "use_opd",
        "normalize_advantages",
        "allgather_cp",
        "calculate_per_token_loss",
        "use_dynamic_batch_size",
        "balance_data",
        "balance_by_flops",
        "recompute_loss_function",
    )
    return Namespace(
        **dict.fromkeys(switched_off, False),
        rlobj=preset,
        custom_advantage_function_path="rlobj.integrations.slime.plan_rollout",
        custom_loss_function_path="rlobj.integrations.slime.loss",
        loss_type="custom_loss",
        kl_coef=0,
        log_probs_chunk_size=-1,
        micro_batch_size=micro,
        rollout_batch_size=RESPONSES // 8,
        n_samples_per_prompt=8,
        global_batch_size=RESPONSES // steps,
        rollout_max_response_len=60,
        context_parallel_size=1,
    )


def slime_gradients(args: Namespace, rank: int, ranks: int) -> list[Tensor]:
    """The gradient of each step of the rollout, summed over ranks as Megatron does."""
    from megatron.core.enums import ModelType  # pyright: ignore[reportMissingImports]
    from megatron.core.pipeline_parallel import get_forward_backward_func  # pyright: ignore[reportMissingImports]
    from megatron.core.transformer import TransformerConfig  # pyright: ignore[reportMissingImports]
    from slime.backends.megatron_utils import data, loss  # pyright: ignore[reportMissingImports]
    from slime.utils.dp_schedule import build_dp_schedule  # pyright: ignore[reportMissingImports]

    whole, model = make_rollout(), build_model()
    shape = {"dp_size": ranks, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    partitions, indices, counts, sizes = build_dp_schedule(
        args,
        shape,
        whole["total_lengths"],
        global_batch_size=args.global_batch_size,
        rollout_indices=list(range(RESPONSES)),
    )
    rollout: dict[str, Any] = {k: [v[i] for i in partitions[rank]] for k, v in whole.items()}
    rollout |= {
        "partition": partitions[rank],
        "raw_reward": whole["raw_reward"],
        "micro_batch_indices": indices[rank],
        "num_microbatches": counts,
        "global_batch_sizes": sizes,
    }
    for name in ("log_probs", "entropy"):
        rollout[name] = []
    model.config = TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=1)
    model.model_type, model.set_input_tensor = ModelType.encoder_or_decoder, lambda _: None
    with torch.no_grad():
        for tokens, total, response in zip(
            rollout["tokens"], rollout["total_lengths"], rollout["response_lengths"], strict=True
        ):
            _, scores = loss.get_log_probs_and_entropy(
                model(tokens[None]),
                args=args,
                unconcat_tokens=[tokens],
                total_lengths=[total],
                response_lengths=[response],
                with_entropy=True,
            )
            rollout["log_probs"] += scores["log_probs"]
            rollout["entropy"] += scores["entropy"]
    loss.compute_advantages_and_returns(args, rollout)
    keys = (
        "tokens",
        "total_lengths",
        "response_lengths",
        "loss_masks",
        "log_probs",
        "advantages",
        "returns",
        "rollout_mask_sums",
    )
    [iterator] = data.get_data_iterator(rollout)
    found = []
    for count, size in zip(counts, sizes, strict=True):

        def forward(it: Any, policy: Any, count: int = count, size: int = size) -> Any:
            batch = it.get_next(keys)
            batch["unconcat_tokens"] = batch["tokens"]
            logits = policy(torch.cat(batch["tokens"])[None])
            return logits, partial(loss.loss_function, args, batch, count, size)

        model.zero_grad()
        with OnCpu():
            get_forward_backward_func()(
                forward_step_func=forward,
                data_iterator=[iterator],
                model=[model],
                num_microbatches=count,
                seq_length=1,
                micro_batch_size=1,
                forward_only=False,
            )
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        torch.distributed.all_reduce(gradient)
        found.append(gradient / ranks)  # as Megatron's DistributedDataParallel scales it
    return found


def own_gradients(args: Namespace) -> list[Tensor]:
    """The gradient of each step as rlobj computes it from one table."""
    whole, model = make_rollout(), build_model()
    objective = load_preset(args.rlobj).objective.resolve(args.rollout_max_response_len)
    logprobs, entropy = [], []
    for tokens, mask in zip(whole["tokens"], whole["loss_masks"], strict=True):
        distribution = model(tokens[PROMPT - 1 : -1]).log_softmax(-1)
        taken = distribution.gather(-1, tokens[PROMPT:, None])[:, 0]
        logprobs.append(taken[mask.bool()])
        entropy.append(-(distribution.exp() * distribution).sum(-1)[mask.bool()].detach())
    flat = torch.cat(logprobs)
    batch = TokenBatch(
        lengths=torch.tensor([len(each) for each in logprobs]),
        groups=torch.arange(RESPONSES) // 8,
        ids=torch.arange(RESPONSES),
        rewards=torch.tensor(whole["raw_reward"]).double(),
        logprobs=flat,
        old_logprobs=flat.detach(),
        entropy=torch.cat(entropy),
        old_entropy=torch.cat(entropy),
    )
    [batch] = objective.with_advantages([batch])
    state, found = objective.observe([batch]), []
    for rows in torch.arange(RESPONSES).split(args.global_batch_size):
        table = batch.select(rows, 0)
        output = objective.loss(table, objective.plan([table], state))
        state["update"] = state.get("update", 0) + 1
        gradient = torch.autograd.grad(output.loss, list(model.parameters()), retain_graph=True)
        found.append(torch.cat([part.flatten() for part in gradient]))
    return found


def answer(micro: int, steps: int) -> dict[str, float]:
    """The largest difference over the steps of a rollout, for each preset."""
    from megatron.core import parallel_state  # pyright: ignore[reportMissingImports]

    from rlobj.integrations import slime

    if "RANK" not in os.environ:
        os.environ |= {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29561",
        }
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    found = {}
    for preset in PRESETS:
        slime._training = None
        args = settings(preset, micro, steps)
        pairs = zip(slime_gradients(args, rank, ranks), own_gradients(args), strict=True)
        found[preset] = max(float((a - b).norm() / b.norm()) for a, b in pairs)
    torch.distributed.destroy_process_group()
    return found


def measure(quick: bool, rounds: int) -> Table:
    """Every preset at every micro-batch size, on one rank and on two."""
    rows = []
    for ranks in (1, 2):
        for steps in (1, 2):
            for micro in (1, 4, 16 // ranks):
                found = ask("benchmarks.slime", {"micro": micro, "steps": steps}, ranks)[0]
                rows.append({"ranks": ranks, "steps": steps, "micro_batch": micro, **found})
    columns = {
        "ranks": ("ranks", ""),
        "steps": ("steps per rollout", ""),
        "micro_batch": ("micro-batch", ""),
    }
    columns |= {preset: (preset, ".0e") for preset in PRESETS}
    return Table(
        "slime",
        str(__doc__),
        columns,
        rows,
        {"responses": RESPONSES},
        labels=("ranks", "steps", "micro_batch"),
        bars=("20-entropy",),
    )


if __name__ == "__main__":
    main(measure, answer)
