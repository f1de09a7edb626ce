from rlobj.samplers.vllm.client import VllmServerSampler as VllmServerSampler
from rlobj.samplers.vllm.colocated import VllmSampler as VllmSampler
from rlobj.samplers.vllm.installed import check_vllm as check_vllm
from rlobj.samplers.vllm.installed import installed_vllm as installed_vllm
from rlobj.samplers.vllm.server import Server as Server
from rlobj.samplers.vllm.settings import ServerSettings as ServerSettings
from rlobj.samplers.vllm.settings import VllmSettings as VllmSettings
