from .client import VllmServerSampler as VllmServerSampler
from .colocated import VllmSampler as VllmSampler
from .server import Server as Server
from .settings import ServerSettings as ServerSettings
from .settings import VllmSettings as VllmSettings
