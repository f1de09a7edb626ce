from rlobj.training.parallel.environment import build_parallel as build_parallel
from rlobj.training.parallel.environment import open_parallel as open_parallel
from rlobj.training.parallel.environment import open_processes as open_processes
from rlobj.training.parallel.environment import resolve_strategy as resolve_strategy
from rlobj.training.parallel.strategies import Parallel as Parallel
