"""Write late.json: what the releases of late 2026 compute on the inputs of generate.py, in float64.

    python tests/objectives/golden/late.py

Run it from the repository's root, with git, torch and numpy. git fetches each repository at one
commit into a folder that is deleted afterwards. The functions are taken out of their files and run
here, because the files import packages that need GPUs. Their float32 is replaced by float64,
decorators are left out, and nothing else is changed. One micro-batch is the whole update.
"""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from generate import GROUPS, LENGTHS, SEEDS, WIDTH, flat, inputs
from torch import Tensor

COMMITS = {
    "zz-haooo/STEER": "b31df71652cd103ddc3512656a430c39ba15dd13",
    "layer6ai-labs/wapo": "ca7025022c42acfbcd43d67c9ee5387a1d0c38c2",
    "PrimeIntellect-ai/prime-rl": "489621ac422b13124533e35b7d4fb1d4d973c47d",  # pull request 3283
    "radixark/miles": "1c8e6b8db5e88790c4d5a31c422bb4868ada4a57",  # pull request 2348
    "WooooDyy/BAPO": "7287044444d5d578529ea464b45f090a36e8da3a",
    "langfengQ/DrMAS": "3b556f2c0373fe23d6b637cbd3673c076713aebe",
    "verl-project/verl#7022": "0257b18e41c969efe13fd03f35c3477eccd4c1e9",
    "verl-project/verl#7497": "cb85d41a7addd723dac0d65899fb8e7386b09af8",
    "verl-project/verl#6731": "7528d2ef66f3c3fa1832e9b37cc8f4624a9076ee",
}
WIDER = {
    "torch.float32": "torch.float64",
    "np.float32": "np.float64",
    "dtype=torch.float)": "dtype=torch.float64)",
    ".float()": ".double()",
}
torch.set_default_dtype(torch.float64)
CLONE = tempfile.TemporaryDirectory()
read: list[str] = []
"""The files and lines that the current case has taken functions from."""


def git(*words: str) -> str:
    command = ["git", "-C", CLONE.name, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@functools.cache
def tree_of(repository: str, path: str) -> ast.Module:
    """The file at the repository's commit; git fetches no other file."""
    commit, remote = COMMITS[repository], repository.replace("#", "-")
    if remote not in git("remote").split():
        git("remote", "add", remote, f"https://github.com/{repository.partition('#')[0]}")
        git("fetch", "--depth=1", "--filter=blob:none", remote, commit)
    return ast.parse(git("show", f"{commit}:{path}"))


def run(nodes: list[Any], space: dict[str, Any]) -> dict[str, Any]:
    """The names of `space`, with those that the statements define in float64."""
    source = "from __future__ import annotations\n" + "\n".join(map(ast.unparse, nodes))
    for narrow, wide in WIDER.items():
        source = source.replace(narrow, wide)
    exec(compile(source, "released", "exec"), space)
    return space


def source_of(repository: str, path: str, node: Any) -> str:
    """The statement's repository, commit, file and lines."""
    return f"{repository}@{COMMITS[repository][:7]} {path}:{node.lineno}-{node.end_lineno}"


def released(repository: str, path: str, *names: str, **space: Any) -> SimpleNamespace:
    """Functions and methods of a file. `space` has what they read of other files."""
    nodes = []
    for name in names:
        walk = ast.walk(tree_of(repository, path))
        node = next(x for x in walk if isinstance(x, ast.FunctionDef) and x.name == name)
        node.decorator_list = []
        nodes.append(node)
        read.append(f"{source_of(repository, path, node)} {name}")
    return SimpleNamespace(**run(nodes, {"torch": torch, "np": np, **space}))


def means(repository: str) -> SimpleNamespace:
    """verl's masked_sum and masked_mean, as the repository has them."""
    names = ["masked_sum", "masked_mean"]
    return released(repository, "verl/utils/torch_functional.py", *names)


CORE = "verl/trainer/ppo/core_algos.py"


class Settings(SimpleNamespace):
    """What verl's losses ask of an actor's settings."""

    global_batch_info: ClassVar[dict[str, Any]] = {}

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


def steer(data: dict[str, Tensor]) -> Tensor:
    repository = "zz-haooo/STEER"
    names = ["agg_loss", "compute_token_weights", "compute_policy_loss_with_entropy"]
    code = released(repository, CORE, *names, verl_F=means(repository))
    loss, *_ = code.compute_policy_loss_with_entropy(
        old_log_prob=data["old_logprobs"],
        log_prob=data["logprobs"],
        advantages=data["advantages"],
        response_mask=data["mask"],
        entropys=data["entropy"],
        cliprange_low=0.2,
        cliprange_high=0.28,
        clip_ratio_c=10.0,
    )
    return loss


def wapo(data: dict[str, Tensor]) -> Tensor:
    """`compute_loss` of the trainer, with the weights and the divisor of its orchestrator."""
    repository, folder = "layer6ai-labs/wapo", "verifiers/rl/trainer"
    path = f"{folder}/orchestrator.py"
    trainer = SimpleNamespace(
        loss_type="wapo",
        clip_eps=9.0,
        use_importance_sampling=True,
        mask_negative_advantages=True,
        mask_positive_advantages=False,
        token_bin_counting=False,
        normalize_by_kept_tokens=False,
        rollouts_per_example=4,
        max_seq_len=8192,
    )
    order = [0, 4, 1, 5, 2, 6, 3, 7]  # of the release: the first response of each prompt, ...
    space: dict[str, Any] = {
        "self": trainer,
        "N": 8,
        "prompts_in_batch": 2,
        "seq_loss_weights": [1.0] * 8,
        "effective_mean_level": "group",
        "advantages": data["advantages"][order, 0].tolist(),
    }
    space["_is_contributing"] = released(
        repository, path, "_is_contributing", self=trainer, advantages=space["advantages"]
    )._is_contributing
    [branch] = [
        node
        for node in ast.walk(tree_of(repository, path))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "effective_mean_level == 'seq'"
    ]
    run([branch], space)
    read.append(f"{source_of(repository, path, branch)} the weights of responses")
    compute = released(
        repository, f"{folder}/trainer.py", "compute_loss", summarize_values=lambda values: None
    ).compute_loss
    columns = {
        "loss_mask": data["mask"],
        "entropies": data["entropy"],
        "trainer_logprobs": data["logprobs"],
        "inference_logprobs": data["sampler_logprobs"],
        "advantages": data["advantages"],
    }
    batch = {name: values[order] for name, values in columns.items()}
    weights = torch.tensor(space["seq_loss_weights"])
    loss, _ = compute(trainer, None, {**batch, "seq_loss_weights": weights})
    return loss / space["loss_normalizer"]


@dataclass
class LossInputs:
    """The fields of prime-rl's class of this name."""

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = field(default=None)


def kpop(data: dict[str, Tensor]) -> Tensor:
    names = ["_safe_mean", "compute_importance_ratio_and_mismatch_kl", "kpop_loss_fn"]
    code = released(
        "PrimeIntellect-ai/prime-rl",
        "src/prime_rl/trainer/rl/loss.py",
        *names,
        "compute_loss",
        LossInputs=LossInputs,
        LossOutputs=SimpleNamespace,
    )
    settings = SimpleNamespace(kpop_threshold=0.1, adv_tau=1.0, kl_tau=1e-3)
    columns = ("logprobs", "sampler_logprobs", "advantages", "mask")
    rows = [[x[:n] for x, n in zip(data[name], data["lengths"], strict=True)] for name in columns]
    loss, _ = code.compute_loss(
        rows[0],
        rows[1],
        None,
        rows[2],
        [mask.bool() for mask in rows[3]],
        *[None] * 3,
        lambda batch: code.kpop_loss_fn(batch, settings),
        rl_scale=int(data["mask"].sum()),
        ce_scale=1,
        ref_kl_scale=1,
    )
    return loss


def up_grpo(data: dict[str, Tensor]) -> Tensor:
    repository = "verl-project/verl#7022"
    names = ["agg_loss", "compute_policy_loss_up", "kl_penalty", "kl_penalty_forward"]
    code = released(repository, CORE, *names, verl_F=means(repository), AlgoConfig=dict)
    loss, _ = code.compute_policy_loss_up(
        data["old_logprobs"],
        data["logprobs"],
        data["advantages"],
        data["mask"],
        config=Settings(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0),
    )
    kl = code.kl_penalty(data["logprobs"], data["ref_logprobs"], "low_var_kl")
    return loss + 0.001 * code.agg_loss(kl, data["mask"], "token-mean")


def delight(data: dict[str, Tensor]) -> Tensor:
    """The clipped term times the gate, and the KL, each as its mean over the responses."""
    repository, folder = "radixark/miles", "miles/backends/training_utils"
    names = ["_safe_clamp_log_ratio", "_safe_exp_neg_ppo_kl", "compute_policy_loss"]
    names += ["compute_delight_gate", "compute_approx_kl"]
    path = f"{folder}/loss_hub/math_utils.py"
    code = released(repository, path, *names, _LOG_RATIO_EXP_CLAMP=20.0)
    settings = SimpleNamespace(
        delight_max_surprisal=10.0,
        delight_temperature=1.0,
        delight_unit_gain=True,
        delight_whiten=False,
    )
    alone = SimpleNamespace(cp=SimpleNamespace(size=1))
    lengths = data["lengths"].tolist()
    reduce = released(
        repository,
        f"{folder}/cp_utils.py",
        "get_sum_of_sample_mean",
        get_parallel_state=lambda: alone,
    ).get_sum_of_sample_mean(lengths, lengths, [torch.ones(n) for n in lengths])
    mask = data["mask"].bool()
    logprobs, old, reference, advantages = (
        data[name][mask] for name in ("logprobs", "old_logprobs", "ref_logprobs", "advantages")
    )
    policy, _ = code.compute_policy_loss(old - logprobs, advantages, 0.2, 0.28)
    gate, _ = code.compute_delight_gate(settings, logprobs, advantages, mask[mask])
    kl = code.compute_approx_kl(logprobs, reference, "low_var_kl")
    return (reduce(policy * gate) + 0.01 * reduce(kl)) / len(lengths)


def cppo(data: dict[str, Tensor]) -> Tensor:
    """On responses that are padded to 8192 tokens, the limit of the script."""
    repository = "verl-project/verl#6731"
    names = ["agg_loss", "compute_policy_loss_cppo"]
    code = released(repository, CORE, *names, verl_F=means(repository), AlgoConfig=dict)
    columns = ("old_logprobs", "logprobs", "advantages", "mask")
    loss, _ = code.compute_policy_loss_cppo(
        *(torch.nn.functional.pad(data[name], (0, 8192 - WIDTH)) for name in columns),
        loss_agg_mode="seq-mean-token-sum-norm",
        config=Settings(clip_ratio=0.15, clip_ratio_c=20.0, policy_loss=Settings(cppo={})),
    )
    return loss


def bapo(data: dict[str, Tensor]) -> Tensor:
    repository, path = "WooooDyy/BAPO", "recipe/bapo/policy_loss.py"
    tools = {"verl_F": means(repository), **vars(released(repository, CORE, "agg_loss"))}
    names = ["_compute_effective_advantage", "_append_metric", "compute_policy_loss_bapo"]
    tools["agg_loss"].__globals__["verl_F"] = tools["verl_F"]
    code = released(repository, path, *names, **tools)
    search = SimpleNamespace(
        ratio_lower_start=0.8,
        ratio_lower_max=0.95,
        ratio_lower_step=0.05,
        ratio_upper_start=1.2,
        ratio_upper_max=2.0,
        ratio_upper_step=0.1,
        adv_ratio_target=0.5,
        eps=1e-8,
    )
    loss, *_ = code.compute_policy_loss_bapo(
        data["old_logprobs"],
        data["logprobs"],
        data["advantages"],
        data["mask"],
        config=Settings(clip_ratio_low=0.2, clip_ratio_high=0.2, policy_loss=search),
    )
    return loss


def codapo(data: dict[str, Tensor]) -> Tensor:
    repository = "verl-project/verl#7497"
    index = released(
        repository,
        "verl/utils/groupwise.py",
        "_resolve_device",
        "_to_1d_numpy_object_array",
        "as_torch_index",
    )
    names = ["compute_grpo_outcome_advantage", "compute_codapo_outcome_advantage"]
    tools = {"as_torch_index": index.as_torch_index, "defaultdict": defaultdict}
    advantages, _ = released(repository, CORE, *names, **tools).compute_codapo_outcome_advantage(
        torch.nn.functional.pad(data["rewards"][:, None], (0, WIDTH - 1)),
        data["mask"],
        data["old_logprobs"],
        np.array(GROUPS),
        accuracy_scores=data["rewards"],
    )
    return advantages


def gigpo(data: dict[str, Tensor]) -> Tensor:
    """A row of the release is a turn, here the tokens of a response with the same number."""
    names = ["to_hashable", "compute_step_discounted_returns", "episode_norm_reward"]
    names += ["build_step_group", "step_norm_reward", "compute_gigpo_outcome_advantage"]
    code = released(
        *("langfengQ/DrMAS", "gigpo/core_gigpo.py", *names),
        defaultdict=defaultdict,
        uuid=uuid,
        List=list,
    )
    turns = [(i, int(n)) for i, row in enumerate(data["turn"]) for n in row[row >= 0].unique()]
    response, number = (torch.tensor(x) for x in zip(*turns, strict=True))
    masks = (data["turn"][response] == number[:, None]).double()
    first = masks.argmax(1)
    groups = np.array(GROUPS)[response]
    rows = SimpleNamespace(
        non_tensor_batch={
            "rewards": data["turn_reward"][response, first].numpy(),
            "traj_uid": response.numpy(),
            "active_masks": np.ones(len(turns)),
            "env_step": number.numpy(),
        },
        batch={"input_ids": masks},
    )
    advantages, _ = code.compute_gigpo_outcome_advantage(
        torch.nn.functional.pad(data["rewards"][response, None], (0, WIDTH - 1)),
        code.compute_step_discounted_returns(rows, 0.95),
        masks,
        data["state"][response, first].numpy(),
        groups,
        response.numpy(),
        mode="mean_std_norm",
    )
    return torch.zeros_like(data["mask"]).index_add(0, response, advantages)


LOSSES: dict[str, Callable[[dict[str, Tensor]], Tensor]] = {
    "steer": steer,
    "wapo": wapo,
    "kpop": kpop,
    "up-grpo": up_grpo,
    "delight": delight,
    "cppo": cppo,
    "bapo": bapo,
}
ADVANTAGES: dict[str, Callable[[dict[str, Tensor]], Tensor]] = {"codapo": codapo, "gigpo": gigpo}
FULL = {"delight", "codapo", "gigpo"}  # an empty response is another case in the release or absent


def in_turns(data: dict[str, Tensor], seed: int) -> None:
    """Turns of one to four tokens in few states; a response's reward is the sum of its turns'."""
    random = torch.Generator().manual_seed(100 + seed)
    starts = (torch.rand(8, WIDTH, generator=random) < 0.4).long()
    starts[:, 0] = 0
    padding = data["mask"] == 0
    turn = starts.cumsum(1)
    rewards = torch.randint(0, 3, (8, WIDTH), generator=random).double() / 2
    states = torch.randint(0, 3, (8, WIDTH), generator=random).double()
    data["turn"] = turn.masked_fill(padding, -1).double()
    data["turn_reward"], data["state"] = rewards.gather(1, turn), states.gather(1, turn)
    last = data["mask"].sum(1).long() - 1
    data["rewards"] = rewards.cumsum(1).gather(1, turn.gather(1, last[:, None]))[:, 0]


def case(name: str, seed: int) -> dict[str, Any]:
    """One case: the inputs that rlobj reads, and what the release computes."""
    read.clear()
    data = inputs(seed)
    data["lengths"] = torch.tensor(LENGTHS[seed])
    if name == "bapo":  # no search, a search that ends, a search that does not
        data["advantages"] = torch.where(
            data["advantages"] > 0, (2.5, 1.32, 0.5)[seed] * data["advantages"], data["advantages"]
        )
    if name == "gigpo":
        in_turns(data, seed)
    leaf = data["logprobs"].requires_grad_()
    result = {**LOSSES, **ADVANTAGES}[name](data)
    columns = [key for key in data if key not in ("mask", "rewards", "lengths")]
    inputs_and_outputs: dict[str, Any] = {
        "name": name,
        "sources": list(read),
        "seed": seed,
        "lengths": LENGTHS[seed],
        "groups": GROUPS,
        "rewards": data["rewards"].tolist(),
        **{key: flat(data, data[key]) for key in columns},
    }
    if name in ADVANTAGES:
        return {**inputs_and_outputs, "advantages": flat(data, result)}
    result.backward()
    assert leaf.grad is not None
    return {**inputs_and_outputs, "loss": result.item(), "grad": flat(data, leaf.grad)}


def main() -> None:
    git("init", "--quiet", "--bare")
    cases = [
        case(name, seed)
        for name in (*LOSSES, *ADVANTAGES)
        for seed in SEEDS
        if not (name in FULL and 0 in LENGTHS[seed])
    ]
    path = Path(__file__).with_name("late.json")
    path.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main()
