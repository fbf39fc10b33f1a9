"""What holds for all tests of data."""

import pytest
import torch

from ..small_runs import one_thread

__all__ = ["one_thread"]


@pytest.fixture(autouse=True)
def _global_generator_is_left_alone():
    """No dataset and no batch may draw from torch's global generator: a resumed run would see other numbers."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)
