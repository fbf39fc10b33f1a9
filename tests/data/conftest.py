"""What holds for all tests of data."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _global_generator_is_left_alone():
    """No dataset and no batch may draw from torch's global generator: a resumed run would see other numbers."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
