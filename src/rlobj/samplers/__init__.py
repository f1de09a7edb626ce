"""Samplers: engines that draw responses from the policy and return each token's log-probability.

`TransformersSampler` needs only torch and the model. It uses the trainer's module or its own copy.
`rlobj.samplers.vllm` runs vLLM in this process or on a server.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
