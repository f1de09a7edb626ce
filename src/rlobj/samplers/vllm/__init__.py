"""Sampling with vLLM: in the training process, or on a server started with `rlobj serve`.

    VllmSampler         one engine per rank; receives weights from an iterator
    VllmServerSampler   HTTP client; sends weights by shared-memory files or by broadcast
    Server              vLLM's API server, protected by a key, with rlobj's worker extension

vLLM is imported when an engine is built; aiohttp is imported when a client is created.
"""

from typing import TYPE_CHECKING

from rlobj.base.lazy import names_of

if TYPE_CHECKING:
    from rlobj.samplers.vllm.client import VllmServerSampler
    from rlobj.samplers.vllm.colocated import VllmSampler
    from rlobj.samplers.vllm.connection import check_vllm, installed_vllm
    from rlobj.samplers.vllm.server import Server
    from rlobj.samplers.vllm.settings import ServerSettings, VllmSettings

__getattr__, __all__ = names_of(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "client": "VllmServerSampler",
        "colocated": "VllmSampler",
        "server": "Server",
        "settings": "ServerSettings VllmSettings",
        "connection": "check_vllm installed_vllm",
    },
)
