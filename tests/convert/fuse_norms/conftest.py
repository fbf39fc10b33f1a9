"""What all tests of `fuse_norms` have in common."""

import pytest
import torch

from stdl_engine.convert import norms
from stdl_engine.kernels.norm_lif.pending_map import _Numbers


@pytest.fixture(autouse=True)
def small_maps(monkeypatch):
    """Maps as small as those of tests are left to the neuron, too."""
    monkeypatch.setattr(norms, "FEWEST", 0)
    torch.manual_seed(0)


@pytest.fixture
def written(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of the outputs of batch norm that were written."""
    shapes = []
    write = _Numbers.write

    def counted(numbers):
        if numbers.written is None:
            shapes.append(tuple(numbers.x.shape))
        return write(numbers)

    monkeypatch.setattr(_Numbers, "write", counted)
    return shapes
