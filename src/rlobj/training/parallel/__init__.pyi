from .environment import open_parallel as open_parallel
from .environment import open_processes as open_processes
from .strategies import Parallel as Parallel
