"""Samplers: engines that draw responses from the policy and return each token's log-probability.

`TransformersSampler` needs only torch and the model. It uses the trainer's module or its own copy.
`rlobj.samplers.vllm` runs vLLM in this process or on a server.
"""

from typing import TYPE_CHECKING

from rlobj.base.lazy import names_of

if TYPE_CHECKING:
    from rlobj.samplers.transformers import TransformersSampler, eos_ids
    from rlobj.samplers.types import (
        Distribution,
        Done,
        Sample,
        Sampler,
        SamplingSettings,
        derive_seed,
    )
    from rlobj.samplers.weights import Digest, Held, Live, Received, Sent, compare, compare_live

__getattr__, __all__ = names_of(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "transformers": "TransformersSampler eos_ids",
        "types": "Distribution Done Sample Sampler SamplingSettings derive_seed",
        "weights": "Digest Held Live Received Sent compare compare_live",
    },
)
