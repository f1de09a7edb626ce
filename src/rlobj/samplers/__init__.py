"""Samplers: engines that draw responses from the policy, and say how likely each token was.

`TransformersSampler` shares the trainer's module; it needs nothing but torch and the model.
"""

from rlobj.samplers.transformers import TransformersSampler
from rlobj.samplers.types import Sample, Sampler, SamplingSettings

__all__ = ["Sample", "Sampler", "SamplingSettings", "TransformersSampler"]
