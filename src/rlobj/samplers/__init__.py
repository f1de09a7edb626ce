"""Samplers: engines that draw responses from the policy, and say how likely each token was.

`TransformersSampler` needs nothing but torch and the model, whose module it shares or copies.
`rlobj.samplers.vllm` has vLLM in this process, and vLLM as a server.
"""

from rlobj.samplers.seeds import derive_seed
from rlobj.samplers.transformers import TransformersSampler, eos_ids
from rlobj.samplers.types import Distribution, Done, Sample, Sampler, SamplingSettings
from rlobj.samplers.weights import Received, Sent, checksum, compare

__all__ = [
    "Distribution",
    "Done",
    "Received",
    "Sample",
    "Sampler",
    "SamplingSettings",
    "Sent",
    "TransformersSampler",
    "checksum",
    "compare",
    "derive_seed",
    "eos_ids",
]
