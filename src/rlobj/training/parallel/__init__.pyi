from .processes import open_parallel as open_parallel
from .processes import open_processes as open_processes
from .strategies import Parallel as Parallel
