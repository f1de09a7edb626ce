"""The head of the tests of scores."""

import pytest
from scoring_tools import make_head


@pytest.fixture
def head():
    return make_head()
