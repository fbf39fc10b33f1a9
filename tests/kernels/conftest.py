"""The backends every kernel test runs on."""

from collections.abc import Iterator

import pytest
import torch

from .compare import TARGETS, Target


@pytest.fixture(params=TARGETS, ids=str)
def target(request) -> Target:
    return request.param


@pytest.fixture(params=["reference", "cpu", "triton"])
def backend(request) -> Iterator[str]:
    """Each backend by name. New tensors are where it runs: on a GPU for Triton, if there is one."""
    on_gpu = request.param == "triton" and torch.cuda.is_available()
    with torch.device("cuda" if on_gpu else "cpu"):
        yield request.param
