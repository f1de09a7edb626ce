"""Conversations: the policy and an environment speak in turn.

    prompt -> turn 0 of the policy -> observation -> turn 1 of the policy -> observation -> ...

The policy's tokens are rows of the table. What the environment says is context, and no row.
"""

from rlobj.base.lazy import names_of

__getattr__, __all__ = names_of(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
