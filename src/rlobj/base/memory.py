"""The address space of this process, its limit, and the memory of this machine."""

import contextlib
import os
import resource


def peak_memory() -> int:
    """The peak address space of this process in bytes; 0 if it is unknown."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmPeak:"):
                return int(line.split()[1]) * 1024
    return 0


def physical_memory() -> int:
    """The bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def limit_memory(most: int) -> None:
    """Limit the address space of this process to some bytes, where the system can."""
    outer = resource.getrlimit(resource.RLIMIT_AS)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (most, outer))


def memory_is_short() -> bool:
    """Whether this process has used more than half of its limit on address space."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit != resource.RLIM_INFINITY and peak_memory() > limit // 2
