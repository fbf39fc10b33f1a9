"""What makes many small training runs quick, for the conftest of a package of tests to import."""

import pytest
import torch

from .paper import footprints_remembered


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """The networks are so small that a second thread only waits, and for long where the machine is shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="package")
def each_layer_measured_once():
    with footprints_remembered():
        yield
