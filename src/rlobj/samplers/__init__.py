"""Samplers: engines that draw responses from the policy and return each token's log-probability.

`TransformersSampler` needs only torch and the model. It uses the trainer's module or its own copy.
`rlobj.samplers.vllm` runs vLLM in this process or on a server.
"""

from rlobj.base.lazy import names_of

__getattr__, __all__ = names_of(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
