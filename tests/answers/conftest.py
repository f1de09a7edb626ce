"""The verifier of the tests of answers."""

from __future__ import annotations

import pytest

from rlobj.rewards import MathVerifier


@pytest.fixture(scope="module")
def verifier():
    with MathVerifier(deadline=10, workers=2) as opened:
        yield opened
