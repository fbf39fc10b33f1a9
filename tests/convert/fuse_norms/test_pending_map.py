"""Batch norm's output before it is written looks like any tensor, to whoever reads its memory, too."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from stdl_engine import FusedLIF, fuse_norms
from stdl_engine.kernels.norm_lif import PendingMap

from ..test_optimize import CHANNELS_LAST, assert_close, frames
from .blocks import Block


@pytest.fixture
def map_and_plain() -> tuple[PendingMap, Tensor]:
    norm = nn.BatchNorm2d(16)
    other = copy.deepcopy(norm)
    fuse_norms(nn.Sequential(norm, FusedLIF()))
    x = torch.randn(2, 16, 4, 4).to(memory_format=CHANNELS_LAST)
    with torch.no_grad():
        found, expected = norm(x), other(x)
    assert type(found) is PendingMap
    return found, expected


def through_a_file(t: Tensor) -> Tensor:
    buffer = io.BytesIO()
    torch.save(t, buffer)
    buffer.seek(0)
    return torch.load(buffer)


@pytest.mark.parametrize(
    "read",
    [
        lambda t: torch.from_numpy(t.numpy()),
        lambda t: torch.tensor(t.tolist()),
        lambda t: torch.from_dlpack(t),
        copy.deepcopy,
        through_a_file,
        lambda t: t.data,
        lambda t: t.clone(),
        lambda t: t.to(torch.float64).float(),
        lambda t: t.cpu(),
        lambda t: torch.empty_like(t).copy_(t),
        lambda t: torch.empty(0).set_(t.untyped_storage(), 0, t.shape, t.stride()),
    ],
)
def test_who_reads_memory_finds_the_numbers(read, map_and_plain):
    found, expected = map_and_plain
    torch.testing.assert_close(read(found).detach() + 0, expected, rtol=1e-5, atol=1e-5)
    assert found.data_ptr() == found.numbers.written.data_ptr()


def test_it_looks_like_any_tensor(map_and_plain):
    found, expected = map_and_plain
    for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "layout", "grad_fn"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.stride() == expected.stride()
    assert found.is_contiguous(memory_format=CHANNELS_LAST)
    assert found.numbers.written is None
    assert repr(found)[:12] == repr(expected)[:12] == "tensor([[[[ "[:12] or repr(found).startswith("tensor(")
    with pytest.raises(RuntimeError, match="would change the shape of batch norm's output in place"):
        found.unsqueeze_(0)


def test_the_gradient_of_the_map_itself():
    """It is not written over, whoever holds it."""
    plain = Block(lambda: FusedLIF(step_mode="m"), "sum")
    models = [plain, copy.deepcopy(plain)]
    fuse_norms(models[1])
    x, grad, results = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6), []
    for model in models:
        kept, norm = [], model.norm2.forward
        model.norm2.forward = lambda x, norm=norm, kept=kept: kept.append(norm(x)) or kept[-1]
        y = model(x)
        assert kept[0].requires_grad
        gradients = torch.autograd.grad(y, [kept[0], *model.parameters()], grad)
        results.append((y, gradients))
    assert type(kept[0]) is PendingMap
    assert_close(*results, 1e-5)
