"""Addresses of servers."""

import contextlib
import socket
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from rlobj.base.errors import ConfigError
from rlobj.base.showing import shown


def require_address(url: str) -> str:
    """The address of a server, to which a path can be added.

    Raises:
        ConfigError: another scheme than http and https, no host, or a port that there is not.

    Example:
        >>> require_address("http://127.0.0.1:8000")
        'http://127.0.0.1:8000'
    """
    with contextlib.suppress(ValueError):  # such as a port that is no number
        parts = urlsplit(url)
        plain = url.isprintable() and not {*url} & {*" \\?#"}
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and plain:
            return url
    raise ConfigError(f"{shown(url)} is no address of a server, such as http://127.0.0.1:8000")


Address = Annotated[str, AfterValidator(require_address)]
"""The address of a server."""


def free_port(address: str = "127.0.0.1") -> int:
    """A port that is not in use now.

    Args:
        address: the address to check; "" = all addresses of this machine.
    """
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
