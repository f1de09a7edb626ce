"""Sampling with vLLM: in the training process, or on a server started with `rlobj serve`.

    VllmSampler         one engine per rank; receives weights from an iterator
    VllmServerSampler   HTTP client; sends weights by shared-memory files or by broadcast
    Server              vLLM's API server, protected by a key, with rlobj's worker extension

vLLM is imported when an engine is built; aiohttp is imported when a client is created.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
