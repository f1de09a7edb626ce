"""The section `training:` of a run: the updates, and the learning rate of each step."""

import math
from typing import Annotated, Literal

from pydantic import Field

from rlobj.base.validation import Model

FindingName = Literal[
    "collapse",
    "no-signal",
    "constant-reward",
    "entropy",
    "update-too-large",
    "truncation",
    "sampler-drift",
    "verifier-trouble",
    "teacher-trouble",
    "value-trouble",
    "inert-setting",
]
"""A finding of the diagnosis."""
Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainingConfig(Model):
    """The updates. A step is one rollout with its updates; an update is one optimizer step."""

    steps: int = Field(default=100, ge=0)
    """number of rollouts"""
    updates_per_step: int = Field(default=1, ge=1)
    """number of mini-batches of whole groups per rollout"""
    passes: int = Field(default=1, ge=1)
    """number of times that a rollout is trained on; each pass has the same mini-batches in the same
    order"""
    learning_rate: float = Field(default=1e-6, gt=0)
    """peak learning rate of AdamW"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """learning rate after warm-up, constant or decreasing to `min_lr_ratio` times the peak"""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """smallest learning rate of a decreasing schedule, as a share of the peak"""
    warmup_steps: int = Field(default=0, ge=0)
    """steps of linear warm-up"""
    warmup_ratio: float | None = Field(default=None, ge=0, le=1)
    """share of the steps that is warm-up, rounded up; replaces `warmup_steps`"""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay"""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's betas"""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon"""
    fused: bool = False
    """torch's fused AdamW, which is faster on a GPU; equal up to rounding"""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """gradients are clipped to this norm; 1e9 = not clipped"""
    micro_batch_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """padded tokens per forward pass; changes memory, and results up to rounding only, after which
    a sampled token may differ later (auto: as many as fit the GPU; 16384 on a CPU)"""
    packed: bool | Literal["auto"] = "auto"
    """pack responses into rows without padding (auto = with flash attention)"""
    shared_prompts: bool | Literal["auto"] = "auto"
    """compute a prompt once for all its responses in a forward pass; changes time, and results up
    to rounding only (auto = where fewer tokens are computed)"""
    selection: Literal["current", "old"] = "current"
    """policy that rules read in later updates of a rollout, the current one (one more forward pass)
    or the rollout's"""
    old_logprobs: Literal["policy", "sampler"] = "policy"
    """where l0 comes from: a scoring pass of the policy, or what the sampler reported, without this
    pass if nothing else needs it; then `sampler_gap` is 0, and no log-prob may be unknown"""
    skip_inactive: bool = True
    """skip tokens and responses without a gradient; changes time, and results up to rounding
    only"""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """recompute activations in the backward pass (auto: if they do not fit the GPU otherwise)"""
    strategy: Literal["auto", "ddp", "zero2", "zero3", "fsdp2"] = "auto"
    """how processes share the policy, a copy each (ddp), DeepSpeed's ZeRO 2 or 3, or PyTorch's
    fsdp2 (auto: one that fits the GPU; ddp on a CPU)"""
    offload: Literal["cpu"] | None = None
    """cpu: zero2 and zero3 keep AdamW's moments and the weights it updates in host memory, where
    the update is slower"""
    max_skipped: int = Field(default=10, ge=1)
    """the run stops after this many skipped non-finite updates in a row, or steps in a row without
    an update"""
    hang_timeout: float = Field(default=3600.0, gt=0)
    """seconds that a process waits for the others, before it ends the run"""
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """CPU threads of torch (auto = one for a model below a million parameters on a CPU; else a
    process's share of the cores)"""
    stop_on: tuple[FindingName, ...] = ()
    """findings of the diagnosis that stop the run after a checkpoint, such as collapse"""

    @property
    def updates(self) -> int:
        """Optimizer updates per rollout, of each phase of the objective."""
        return self.updates_per_step * self.passes


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The learning rate of a step (from 0).

    With peak p, N steps, floor r = `min_lr_ratio`, and W = ceil(`warmup_ratio`·N) if that is set,
    else `warmup_steps`:

        step s < W   p·(s + 1)/W
        step s ≥ W   p·(r + (1 − r)·f(x)),   x = (s − W)/(N − W)
        f(x) =       1 − x for "linear", (1 + cos(πx))/2 for "cosine"; "constant": p

    Example:
        >>> config = TrainingConfig(steps=10, learning_rate=1.0, warmup_steps=4, schedule="linear")
        >>> [round(learning_rate(config, step), 2) for step in (0, 3, 4, 7, 9)]
        [0.25, 1.0, 1.0, 0.5, 0.17]
    """
    ratio, warmup, floor = config.warmup_ratio, config.warmup_steps, config.min_lr_ratio
    warmup = warmup if ratio is None else math.ceil(ratio * config.steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(config.steps - warmup, 1)
    shape = {
        "constant": 1.0,
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
    }[config.schedule]
    return config.learning_rate * (floor + (1 - floor) * shape)
