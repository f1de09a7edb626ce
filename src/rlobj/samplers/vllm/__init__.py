"""Sampling with vLLM: in the training process, or from a server that `rlobj serve` started.

    VllmSampler         one engine a rank, given weights from an iterator
    VllmServerSampler   HTTP; weights travel by shared-memory files or by broadcast
    Server              vLLM's API server behind a key, with rlobj's extension in its workers

vLLM is imported when an engine is built, aiohttp when a server is called.
"""

from rlobj.samplers.vllm.client import VllmServerSampler
from rlobj.samplers.vllm.colocated import VllmSampler
from rlobj.samplers.vllm.server import Server
from rlobj.samplers.vllm.settings import ServerSettings, VllmSettings
from rlobj.samplers.vllm.versions import check, installed

__all__ = [
    "Server",
    "ServerSettings",
    "VllmSampler",
    "VllmServerSampler",
    "VllmSettings",
    "check",
    "installed",
]
