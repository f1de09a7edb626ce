"""Network ports of this machine."""

import socket


def free_port(address: str = "127.0.0.1") -> int:
    """A port that is not in use now.

    Args:
        address: the address to check; "" = all addresses of this machine.
    """
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
