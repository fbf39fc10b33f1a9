"""The backends every kernel test runs on."""

import pytest

from .compare import TARGETS, Target


@pytest.fixture(params=TARGETS, ids=str)
def target(request) -> Target:
    return request.param
