"""Tools that fail in all ways; the tests name them by this file."""

import asyncio
import random
import time

from rlobj.conversations import ToolError


def add(a: int, b: int = 0) -> int:
    """Add two integers.

    Args:
        a: The first one.
        b: The second one.
    """
    return a + b


def fail(how: str):
    """Fail in some way.

    Args:
        how: The way.
    """
    return globals()[f"fail_{how}"]()


def fail_raise():
    raise KeyError("gone " + "x" * 10_000)


def fail_own():
    raise ToolError("no such city")


def fail_sleep():
    time.sleep(100)


def fail_long():
    return "a" * 1_000_000 + "z" * 1_000_000


def fail_none():
    return None


def fail_surrogate():
    return "\ud800!"


def values(kind: str):
    """Return a value.

    Args:
        kind: Which one.
    """
    return {"list": [1, {"a": None}], "number": 0.5, "text": "é"}[kind]


def by_position(a: int, /) -> int:
    """Return it.

    Args:
        a: What is returned.
    """
    return a


def draw() -> float:
    """Draw a random number."""
    return random.random()


async def wait(seconds: float) -> str:
    """Wait for some time.

    Args:
        seconds: The time.
    """
    await asyncio.sleep(seconds)
    return "waited"
