"""The examples in docstrings run and show what they say."""

import doctest

import pytest

from stdl_engine import neurons
from stdl_engine.kernels.lif import ops


@pytest.mark.parametrize("module", [neurons, ops], ids=lambda m: m.__name__)
def test_examples(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
