from .client import VllmServerSampler as VllmServerSampler
from .colocated import VllmSampler as VllmSampler
from .installed import check_vllm as check_vllm
from .installed import installed_vllm as installed_vllm
from .server import Server as Server
from .settings import ServerSettings as ServerSettings
from .settings import VllmSettings as VllmSettings
