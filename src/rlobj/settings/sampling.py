"""The section `sampling:` of a run: how responses are sampled."""

from typing import Any, Literal

from pydantic import Field

from rlobj.base.validation import Model
from rlobj.samplers import SamplingSettings
from rlobj.samplers.vllm.settings import ServerSettings, VllmSettings


class DynamicSampling(Model):
    """Drop groups without signal and sample new ones (DAPO, arXiv:2503.14476 eq. 11)."""

    by: Literal["accuracy", "reward"] = "accuracy"
    """keep groups with 0 < accuracy < 1, before reward shaping (accuracy; the reward says what is
    right), or groups with unequal rewards (reward)"""
    max_batches: int = Field(default=10, ge=1)
    """largest number of batches of prompts per step"""
    whole_batches: bool = False
    """false: a further batch has one prompt for each group that is missing, and the step trains on
    the groups that there are in the end; true, as in verl: each batch has prompts for a whole
    step, the step trains on the first `prompts_per_step` groups with a signal, and the run stops
    if there are fewer"""
    oversampling: float = Field(default=1.0, gt=0)
    """with `whole_batches`: prompts of a batch, as a multiple of `prompts_per_step`"""
    allow_fewer: bool = False
    """with `whole_batches`: train on the groups that there are, if they are too few"""


class SamplingConfig(SamplingSettings):
    """How responses are sampled."""

    max_tokens: int = Field(default=1024, ge=1)
    """largest number of tokens in a response"""
    engine: Literal["auto", "transformers", "vllm", "vllm-server", "object"] = "auto"
    """transformers, vLLM in the training process, a server of `rlobj serve`, or a Sampler object
    that Python code passed (auto: vllm if there are a GPU and vLLM, else transformers)"""
    prompts_per_step: int = Field(default=32, ge=1)
    """prompts per step, over all ranks"""
    group_size: int = Field(default=8, ge=1)
    """G, responses per prompt"""
    batch_tokens: int = Field(default=131072, ge=1)
    """prompt and response tokens that are sampled at the same time"""
    dynamic: DynamicSampling | None = None
    """dynamic sampling; null = train on every group"""
    context: int | None = Field(default=None, ge=2)
    """largest number of tokens in a row of a conversation, with its prompt and all that the policy
    reads; null = what the engine allows"""
    async_depth: int = Field(default=0, ge=0)
    """number of rollouts sampled ahead; samples are exactly this many steps old; 0 = sample, then
    train"""
    schedule: Literal["steps", "continuous"] = "steps"
    """steps: the responses of a step are drawn together, `async_depth` steps ahead, and a run can
    be repeated; continuous: responses are drawn all the time, a step trains on the first groups
    that are complete, and those in flight go on with the new weights after it"""
    in_flight: int | None = Field(default=None, ge=1)
    """with `continuous`: prompts, over all ranks, whose responses are drawn or wait for a step;
    null = twice `prompts_per_step`"""
    max_staleness: int = Field(default=4, ge=0)
    """with `continuous`: a group with a token of older weights than this many steps is drawn
    again"""
    recompute_cache: bool = True
    """with `continuous`: after each step, the keys and values of responses in flight are computed
    again with the new weights, so that log-probs are exactly theirs; false = those of the old
    weights are kept, which is faster"""
    max_logprob_gap: float | Literal["auto"] = "auto"
    """the run stops if the mean |sampler - trainer| log-prob of fresh samples exceeds this, in nats
    (auto: ten times the first step's, at most 0.001 in float32 and 0.1 in bfloat16)"""
    vllm: VllmSettings = VllmSettings()
    """vLLM in the training process"""
    server: ServerSettings = ServerSettings()
    """a vLLM server"""

    @property
    def continuous(self) -> bool:
        """Whether responses are drawn all the time."""
        return self.schedule == "continuous"

    @property
    def ahead(self) -> bool:
        """Whether responses are drawn while the policy is trained."""
        return self.async_depth > 0 or self.continuous

    @property
    def prompts_in_flight(self) -> int:
        """`in_flight`, or twice `prompts_per_step` where it is null."""
        return self.in_flight or 2 * self.prompts_per_step

    def settings(self, **other: Any) -> SamplingSettings:
        """Return the settings of the sampler, with other values if given."""
        values = {name: getattr(self, name) for name in SamplingSettings.model_fields}
        return SamplingSettings(**{**values, **other})
