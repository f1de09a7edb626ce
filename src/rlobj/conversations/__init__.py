"""Conversations: the policy and an environment speak in turn.

    prompt -> turn 0 of the policy -> observation -> turn 1 of the policy -> observation -> ...

The policy's tokens are rows of the table. What the environment says is context, and no row.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
