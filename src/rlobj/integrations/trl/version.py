"""The versions of TRL that the integration was tested with."""

from __future__ import annotations

from packaging.version import Version

from rlobj.base.errors import ConfigError, MissingExtra
from rlobj.installation import installed_version

FIRST, LAST = (1, 13), (1, 16)


def require_trl() -> None:
    """Check that TRL is installed, in a version that was tested.

    Raises:
        MissingExtra: it is not installed.
        ConfigError: another version is installed.
    """
    found = installed_version("trl")
    if found is None:
        raise MissingExtra("trl", "trl", "rlobj.integrations.trl")
    if not FIRST <= Version(found).release[:2] <= LAST:
        first, last = (".".join(map(str, version)) for version in (FIRST, LAST))
        raise ConfigError(
            f"trl {found} is installed; rlobj.integrations.trl was tested with {first} to {last}. "
            f"Install one of these: pip install 'trl~={last}.0'"
        )
