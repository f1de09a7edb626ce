from rlobj.conversations.calls import CallReader as CallReader
from rlobj.conversations.environment import Environment as Environment
from rlobj.conversations.environment import Message as Message
from rlobj.conversations.environment import Turn as Turn
from rlobj.conversations.rendering import Rendering as Rendering
from rlobj.conversations.settings import EnvironmentSettings as EnvironmentSettings
