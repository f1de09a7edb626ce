"""Write released.json: what released packages compute on small random inputs.

Each case calls a function of TRL, verl, SkyRL or ms-swift and stores its inputs and outputs. Run it
from the repository's root, in an environment of its own; requirements.txt says how to make it:

    python tests/objectives/golden/generate.py

No GPU is needed. ms-swift requires trl < 1, so only the source of its one function is read.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import json
import types
import typing
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typing_extensions
from torch import Tensor

SEEDS = (0, 1, 2)
LENGTHS = {0: [7, 4, 9, 1, 6, 3, 8, 5], 1: [3, 10, 2, 5, 8, 4, 6, 7], 2: [5, 9, 6, 0, 4, 8, 2, 7]}
GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]
WIDTH = 10
Loss = Callable[[dict[str, Tensor]], Tensor]


# Inputs: padded [B, T] in float64, with ratios far out of every bound.


def inputs(seed: int, *, gap: float = 1.0) -> dict[str, Tensor]:
    """Columns [8, 10]; `gap` scales the differences between the policies, in nats."""
    random = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float) -> Tensor:
        unit = torch.rand(8, WIDTH, generator=random, dtype=torch.float64)
        return (low + (high - low) * unit).round(decimals=4)

    old = draw(-4, -0.05)
    mask = torch.arange(WIDTH)[None] < torch.tensor(LENGTHS[seed])[:, None]
    rewards = torch.rand(8, generator=random).round().double()
    rewards[0], rewards[1] = 1.0, 0.0
    rewards[4:] *= seed < 2  # in the last case a group has no signal
    scale = torch.where(draw(0, 1) < 0.3, 2.5, 0.25) * gap  # a few tokens far away

    def near(scale: Tensor | float) -> Tensor:
        return (old + draw(-1, 1) * scale).clamp(max=-0.01).round(decimals=4)

    return {
        "logprobs": near(scale),
        "old_logprobs": old,
        "ref_logprobs": near(0.5),
        "sampler_logprobs": near(scale),
        "entropy": draw(0, 3),
        "collision": ((2 * old).exp() + draw(0, 0.02)).round(decimals=4),
        "advantages": draw(-1.5, 1.5)[:, :1].expand(8, WIDTH).contiguous(),
        "mask": mask.double(),
        "rewards": rewards,
    }


# The packages.


def module(name: str) -> Any:
    return importlib.import_module(name)


def core() -> Any:
    return module("verl.trainer.ppo.core_algos")


def verl_loss(mode: str, data: dict[str, Tensor], weights: Tensor | None = None, **given: Any):
    """The scalar loss of a registered policy loss of verl, token-mean unless `agg` says more."""
    settings = module("verl.workers.config.actor")
    policy = settings.PolicyLossConfig(loss_mode=mode, dro_beta=given.pop("dro_beta", None))
    agg = given.pop("agg", "token-mean")
    clip = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 1e9, **given}
    config = settings.ActorConfig(
        strategy="fsdp", use_dynamic_bsz=True, rollout_n=4, policy_loss=policy, **clip
    )
    loss, _ = core().get_policy_loss_fn(mode)(
        old_log_prob=data["old_logprobs"],
        log_prob=data["logprobs"],
        advantages=data["advantages"],
        response_mask=data["mask"],
        loss_agg_mode=agg,
        config=config,
        rollout_is_weights=weights,
    )
    return loss


def verl_weights(data: dict[str, Tensor], level: str, threshold: float | str) -> Tensor:
    """verl's importance weights between trainer and sampler."""
    weights, _ = module("verl.trainer.ppo.rollout_corr_helper").compute_rollout_correction_weights(
        log_ratio=data["old_logprobs"] - data["sampler_logprobs"],
        response_mask=data["mask"],
        rollout_is=level,
        rollout_is_threshold=threshold,
    )
    return weights


class OneProcess:
    """What TRL's loss asks of `accelerate`, in one process."""

    num_processes, sync_gradients = 1, True

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        return tensor


def trl_loss(data: dict[str, Tensor], **given: Any) -> Tensor:
    """`GRPOTrainer._compute_loss` on a trainer that holds only the settings it reads."""
    trainer = module("trl.trainer.grpo_trainer").GRPOTrainer
    weights = given.pop("weights", None)
    arguments = types.SimpleNamespace(
        delta=given.pop("delta", None),
        steps_per_generation=1,
        use_bias_correction_kl=True,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
    )
    settings = {
        "loss_type": "grpo",
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "beta": 0.0,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": weights is not None,
        "vllm_importance_sampling_correction": weights is not None,
        **given,
    }
    fake = types.SimpleNamespace(
        args=arguments,
        accelerator=OneProcess(),
        model=types.SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            data["logprobs"],
            data["entropy"],
            None,
        ),
        get_off_policy_mask=trainer.get_off_policy_mask,
        **settings,
    )
    ids = torch.zeros(8, WIDTH, dtype=torch.int64)
    return trainer._compute_loss(
        fake,
        None,
        {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1] + 1,
            "completion_ids": ids,
            "completion_mask": data["mask"],
            "advantages": data["advantages"],
            "old_per_token_logps": data["old_logprobs"],
            "ref_per_token_logps": data["ref_logprobs"],
            "num_items_in_batch": data["mask"].sum(),
            "importance_sampling_ratio": weights,
        },
    )


def fipo_weight(data: dict[str, Tensor]) -> Tensor:
    """ms-swift's influence weight, with the settings of the authors' script."""
    spec = importlib.util.find_spec("swift")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "rlhf_trainers" / "grpo_trainer.py"
    (source,) = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "_compute_fipo_influence"
    )
    names = {"torch": torch, "Tuple": typing.Tuple, "Dict": typing.Dict}  # noqa: UP006
    exec(compile(ast.Module([source], []), str(path), "exec"), names)
    trainer = types.SimpleNamespace(
        args=types.SimpleNamespace(delta=10.0),
        fipo_gamma=2 ** (-1 / 32.0),
        fipo_clip_range=0.2,
        fipo_clip_high_only=True,
        fipo_safety_threshold=10.0,
    )
    moved = (data["logprobs"] - data["old_logprobs"]).detach()
    weight, _ = names["_compute_fipo_influence"](  # type: ignore[operator]
        trainer, moved, moved.exp(), data["advantages"], data["mask"].bool()
    )
    return weight


def iw_opd(data: dict[str, Tensor]) -> Tensor:
    """TRL's loss with the reference in the teacher's place, over a vocabulary of two tokens."""
    trainer = module("trl.experimental.iw_opd.iw_opd_trainer").IWOPDTrainer
    fake = types.SimpleNamespace(
        temperature=1.0,
        iw_opd_gamma=0.5,
        iw_opd_epsilon=1e-8,
        model=types.SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
    )
    sampled = torch.zeros(8, WIDTH, dtype=torch.int64)
    return trainer._compute_iw_opd_loss(
        fake,
        student_logits=torch.stack([data["logprobs"], (-data["logprobs"].exp()).log1p()], -1),
        completion_tokens=sampled,
        labels=sampled.masked_fill(data["mask"] == 0, -100),
        teacher_actual_logprobs=data["ref_logprobs"],
    )


def maxrl(data: dict[str, Tensor]) -> Tensor:
    """SkyRL's MaxRL advantages, [B, T]."""
    typing.TypedDict = typing_extensions.TypedDict  # pydantic asks for it below Python 3.12
    utils = module("skyrl.backends.skyrl_train.utils.ppo_utils")
    rewards = torch.nn.functional.pad(data["rewards"][:, None], (0, WIDTH - 1))  # of tokens
    return utils.compute_maxrl_advantage(rewards, data["mask"], np.array(GROUPS))[0]


def otb(data: dict[str, Tensor]) -> Tensor:
    """verl's advantages with the optimal token baseline, [B, T]."""
    last = torch.nn.functional.one_hot((data["mask"].sum(1).long() - 1).clamp(min=0), WIDTH)
    advantages, _ = core().compute_optimal_token_baseline_advantage(
        token_level_rewards=last * data["rewards"][:, None],
        response_mask=data["mask"],
        index=np.array(GROUPS),
        old_log_probs=data["old_logprobs"],
        sum_pi_squared=data["collision"],
    )
    return advantages


LOSSES: dict[str, tuple[str, str, Loss]] = {
    "tis": ("verl", "vanilla, token_truncate 2", lambda d: verl_loss(
        "vanilla", d, verl_weights(d, "token", 2.0), clip_ratio_high=0.28)),
    "mis": ("verl", "vanilla, sequence mask 0.5_2", lambda d: verl_loss(
        "vanilla", d, verl_weights(d, "sequence", "0.5_2.0"), clip_ratio_high=0.28)),
    "icepop": ("verl", "vanilla, token mask 0.5_5", lambda d: verl_loss(
        "vanilla", d, verl_weights(d, "token", "0.5_5.0"), clip_ratio_high=0.28)),
    "dppo": ("verl", "dppo_tv", lambda d: verl_loss("dppo_tv", d, clip_ratio_c=20.0)),
    "dppo-kl": ("verl", "dppo_kl", lambda d: verl_loss(
        "dppo_kl", d, clip_ratio_low=0.05, clip_ratio_high=0.05, clip_ratio_c=20.0)),
    "dro": ("verl", "dro", lambda d: verl_loss("dro", d, dro_beta=0.1)),
    "gspo": ("verl", "gspo", lambda d: verl_loss(
        "gspo", d, clip_ratio_low=3e-4, clip_ratio_high=4e-4, agg="seq-mean-token-mean")),
    "sapo": ("verl", "sapo", lambda d: verl_loss("sapo", d, agg="seq-mean-token-mean")),
    "cispo": ("trl", "cispo", lambda d: trl_loss(d, loss_type="cispo", epsilon_high=5.0)),
    "luspo": ("trl", "luspo", lambda d: trl_loss(
        d, loss_type="luspo", importance_sampling_level="sequence",
        epsilon_low=2e-3, epsilon_high=2.5e-3)),
    "iw-opd": ("trl", "IWOPDTrainer._compute_iw_opd_loss", iw_opd),
    "opsm": ("trl", "grpo, off_policy_mask_threshold 0.1", lambda d: trl_loss(
        d, off_policy_mask_threshold=0.1)),
    "fipo": ("ms-swift", "_compute_fipo_influence; loss: trl dapo, delta 10", lambda d: trl_loss(
        d, loss_type="dapo", epsilon_high=0.28, delta=10.0, weights=fipo_weight(d))),
}  # fmt: skip
ADVANTAGES: dict[str, tuple[str, str, Loss]] = {
    "maxrl": ("skyrl", "compute_maxrl_advantage", maxrl),
    "otb": ("verl", "compute_optimal_token_baseline_advantage", otb),
}
FULL = {"gspo", "sapo", "luspo", "opsm"}  # they count an empty response in B, rlobj does not


def flat(data: dict[str, Tensor], value: Tensor) -> list[float]:
    return value.detach()[data["mask"].bool()].tolist()


def case(name: str, seed: int) -> dict[str, Any]:
    """One case: the inputs that rlobj reads, and the package's outputs."""
    package, function, compute = {**LOSSES, **ADVANTAGES}[name]
    data = inputs(seed, gap={"gspo": 0.1, "luspo": 0.1, "mis": 0.4}.get(name, 1.0))
    leaf = data["logprobs"].requires_grad_()
    result = compute(data)
    found: dict[str, Any] = {
        "name": name,
        "package": f"{package} {importlib.metadata.version(package)}",
        "function": function,
        "seed": seed,
        "lengths": LENGTHS[seed],
        "groups": GROUPS,
        "rewards": data["rewards"].tolist(),
    }
    columns = [key for key in data if key not in ("mask", "rewards")]
    found |= {key: flat(data, data[key]) for key in columns}
    if name in ADVANTAGES:
        return {**found, "advantages": flat(data, result)}
    result.backward()
    assert leaf.grad is not None
    return {**found, "loss": result.item(), "grad": flat(data, leaf.grad)}


def main() -> None:
    cases = [
        case(name, seed)
        for name in (*LOSSES, *ADVANTAGES)
        for seed in SEEDS
        if not (name in FULL and 0 in LENGTHS[seed])
    ]
    path = Path(__file__).with_name("released.json")
    path.write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
