"""Samplers: engines that draw responses from the policy and return each token's log-probability.

`TransformersSampler` needs only torch and the model. It uses the trainer's module or its own copy.
`rlobj.samplers.vllm` runs vLLM in this process or on a server.
"""

from rlobj.samplers.transformers import TransformersSampler, eos_ids
from rlobj.samplers.types import Distribution, Done, Sample, Sampler, SamplingSettings, derive_seed
from rlobj.samplers.weights import (
    Digest,
    Held,
    Live,
    Received,
    Sent,
    compare,
    compare_live,
)

__all__ = [
    "Digest",
    "Distribution",
    "Done",
    "Held",
    "Live",
    "Received",
    "Sample",
    "Sampler",
    "SamplingSettings",
    "Sent",
    "TransformersSampler",
    "compare",
    "compare_live",
    "derive_seed",
    "eos_ids",
]
