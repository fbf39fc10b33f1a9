"""The gradient of a convolution's input as a matrix product per tap. What it computes is compared with PyTorch's in
float64 in test_spike_conv.py, for all geometries."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.library import opcheck

from stdl_engine.kernels.spike_conv import taps, taps_input_gradient

LAST = torch.channels_last
ONE, TWO = (1, 1), (2, 2)


def operands(channels=48, out_channels=80):
    """Of maps of 5 × 7, with stride 2: more output channels than a square of weights has, and not a multiple."""
    grad = torch.randn(3, out_channels, 3, 4).contiguous(memory_format=LAST)
    return grad, torch.randn(out_channels, channels, 3, 3).contiguous(memory_format=LAST), (3, channels, 5, 7)


@pytest.mark.parametrize("channels", [16, 32, 64])
@pytest.mark.parametrize("held", [6, 24])
def test_the_same_whatever_registers_hold(held, channels, monkeypatch):
    """As on a CPU with few registers and on one with many; the sums are the same."""
    grad, weight, shape = operands(channels)
    expected = taps_input_gradient(grad, weight, shape, TWO, ONE)
    monkeypatch.setattr(taps, "sums_held", lambda: held)
    assert torch.equal(taps_input_gradient(grad, weight, shape, TWO, ONE), expected)


def test_the_same_on_any_number_of_threads():
    grad, weight, shape = operands(channels=192)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(taps_input_gradient(grad, weight, shape, TWO, ONE))
    torch.set_num_threads(before)
    assert all(torch.equal(other, found[0]) for other in found[1:])


def test_any_memory_order():
    grad, weight, shape = operands()
    expected = taps_input_gradient(grad, weight, shape, TWO, ONE)
    strided = torch.randn(3, 80, 6, 4)[:, :, ::2].copy_(grad)
    assert torch.equal(taps_input_gradient(strided, weight.contiguous(), shape, TWO, ONE), expected)


def test_what_a_pixel_is_not_given_does_not_reach_it():
    """NaN in one image, and weights that meet only zeros of the padding."""
    grad, weight, shape = operands()
    expected = taps_input_gradient(grad, weight, shape, TWO, ONE)
    grad[1] = float("nan")
    found = taps_input_gradient(grad, weight, shape, TWO, ONE)
    assert found[1].isnan().any()
    assert torch.equal(found[::2], expected[::2])
    pixel = torch.randn(2, 80, 1, 1).contiguous(memory_format=LAST)
    centre = taps_input_gradient(pixel, weight, (2, 48, 1, 1), ONE, ONE)
    weight[:, :, 0] = float("inf")
    assert torch.equal(taps_input_gradient(pixel, weight, (2, 48, 1, 1), ONE, ONE), centre)


def test_pixels_that_no_tap_gives_to_are_zero():
    grad, weight = torch.randn(2, 16, 2, 2), torch.randn(16, 16, 1, 1)
    found = taps_input_gradient(grad, weight, (2, 16, 4, 4), (3, 3), (0, 0))
    assert found[:, :, ::3, ::3].ne(0).all()
    found[:, :, ::3, ::3] = 0
    assert not found.any()


def test_operator():
    """Schema, fake tensors, and the strides that the fake ones promise."""
    grad, weight, shape = operands()
    opcheck(torch.ops.stdl_engine.taps_input_gradient.default, (grad, weight, [*shape], [2, 2], [1, 1]))
    found = taps_input_gradient(grad, weight, shape, TWO, ONE)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = taps_input_gradient(torch.empty_like(grad), torch.empty_like(weight), shape, TWO, ONE)
    assert (fake.shape, fake.stride(), fake.dtype) == (found.shape, found.stride(), found.dtype)
