"""The online step that writes its spikes over the input."""

import pytest
import torch

from stdl_engine.kernels import bits_of
from stdl_engine.kernels.bits.reference import pack
from stdl_engine.kernels.lif import lif_step_, reference

from .compare import RESETS, Case, assert_equal, on_targets_and_dtypes

OPTIONS = {"decay": 0.3, "threshold": 0.6, "scale": 0.8}


def both(case: Case, target, **options):
    """Spikes, state, bits and gradient, with the spikes in memory of their own and over the input."""
    results = []
    for overwrite in (False, True):
        leaf, m = case.x.clone().requires_grad_(), case.m_prev.clone()
        x = leaf * 1
        spikes = lif_step_(x, m, backend=target.backend, overwrite=overwrite, **options)
        assert (spikes.data_ptr() == x.data_ptr()) == overwrite
        packed = bits_of(spikes)
        (grad_x,) = torch.autograd.grad(spikes, leaf, case.grad_spikes)
        results.append((spikes.detach(), m, packed, grad_x))
    return results


@on_targets_and_dtypes()
@pytest.mark.parametrize("reset", RESETS, ids=lambda r: r["reset"])
def test_same_as_in_memory_of_its_own(target, dtype, reset):
    case = Case.random((1037,), dtype, target.device, threshold=OPTIONS["threshold"])
    for mine, over in zip(*both(case, target, **OPTIONS, **reset), strict=True):
        assert_equal(mine, over)


def test_channels_last(target):
    case = Case.random((2, 3, 4, 5), torch.float32, target.device)
    case = case.map(lambda t: t.contiguous(memory_format=torch.channels_last))
    for mine, over in zip(*both(case, target), strict=True):
        assert_equal(mine, over)


def test_other_order_than_the_state(target):
    """Bits follow the state's memory, so the spikes must, too, and cannot be where the input is."""
    case = Case.random((2, 3, 4, 5), torch.float32, target.device)
    x, right_m = case.x.contiguous(memory_format=torch.channels_last), case.m_prev.clone()
    spikes = lif_step_(x, case.m_prev, backend=target.backend, overwrite=True)
    assert_equal(spikes, reference.lif_step_(case.x, right_m))
    assert_equal(case.m_prev, right_m)
    assert_equal(bits_of(spikes), pack(spikes))


def test_what_needs_the_input_notices(target):
    """The square saves its input, which is then written over."""
    leaf = torch.rand(5, device=target.device, requires_grad=True)
    x = leaf * 1
    square = x**2
    lif_step_(x, torch.zeros(5, device=target.device), backend=target.backend, overwrite=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.backward(torch.ones_like(square))


def test_leaf_is_refused(target):
    x = torch.rand(5, device=target.device, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        lif_step_(x, torch.zeros(5, device=target.device), backend=target.backend, overwrite=True)
