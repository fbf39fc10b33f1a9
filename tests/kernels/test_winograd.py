"""The gradient of the input of a 3 × 3 convolution by Winograd's algorithm against PyTorch's in float64."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.library import opcheck

from stdl_engine.kernels.spike_conv import input_gradient, takes_winograd, winograd, winograd_input_gradient

LAST = torch.channels_last


def plain(grad, weight, shape, padding):
    settings = [1, 1], [*padding], [1, 1], False, [0, 0], 1, [True, False, False]
    stand_in = torch.zeros((), dtype=grad.dtype).expand(shape)
    return torch.ops.aten.convolution_backward(grad, stand_in, weight, None, *settings)[0]


def operands(shape, out_channels, padding=(1, 1)):
    images, channels, *size = shape
    grad_size = [n + 2 * pad - 2 for n, pad in zip(size, padding, strict=True)]
    grad = torch.randn(images, out_channels, *grad_size).contiguous(memory_format=LAST)
    return grad, torch.randn(out_channels, channels, 3, 3).contiguous(memory_format=LAST)


def rms(t):
    """Unlike the largest of many errors, it hardly depends on the numbers that are drawn."""
    return t.square().mean().sqrt()


def errors(shape, out_channels, padding=(1, 1), measure=torch.amax) -> tuple[float, float]:
    """The largest errors of Winograd's algorithm and of PyTorch's kernel in float32, or another `measure` of them."""
    grad, weight = operands(shape, out_channels, padding)
    exact = plain(grad.double(), weight.double(), shape, padding)
    found = winograd_input_gradient(grad, weight, shape, padding)
    assert found.shape == exact.shape
    assert found.is_contiguous(memory_format=LAST)
    ours, theirs = (measure((t - exact).abs()).item() for t in (found, plain(grad, weight, shape, padding)))
    return ours, theirs


@pytest.mark.parametrize("shape", [(8, 16, 16, 16), (4, 64, 8, 8), (3, 256, 4, 4), (2, 32, 17, 9)], ids=str)
def test_error_is_that_of_the_plain_sums(shape):
    ours, theirs = errors(shape, shape[1])
    assert ours <= 2 * theirs


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.tuples(st.integers(1, 13), st.integers(1, 13)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
)  # fmt: skip
def test_any_geometry(images, channels, out_channels, size, padding):
    """Also maps of one pixel, tiles that reach over the edge, and fewer tiles than are multiplied together."""
    size = tuple(max(n, 3 - 2 * pad) for n, pad in zip(size, padding, strict=True))
    ours, _ = errors((images, 16 * channels, *size), 16 * out_channels, padding, rms)
    assert ours <= 6e-8 * (9 * 16 * out_channels) ** 0.5 * 8


@pytest.mark.parametrize("together", [6, 12])
def test_tiles_multiplied_together(together, monkeypatch):
    """As on a CPU with few registers and on one with many; the sums are the same."""
    grad, weight = operands((3, 32, 11, 6), 48)
    expected = winograd_input_gradient(grad, weight, (3, 32, 11, 6), (1, 1))
    monkeypatch.setattr(winograd, "_tiles_together", lambda: together)
    assert torch.equal(winograd_input_gradient(grad, weight, (3, 32, 11, 6), (1, 1)), expected)


def test_the_same_on_any_number_of_threads():
    grad, weight = operands((8, 32, 16, 16), 64)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(winograd_input_gradient(grad, weight, (8, 32, 16, 16), (1, 1)))
    torch.set_num_threads(before)
    assert all(torch.equal(other, found[0]) for other in found[1:])


def test_any_memory_order():
    grad, weight = operands((2, 32, 6, 6), 16)
    expected = winograd_input_gradient(grad, weight, (2, 32, 6, 6), (1, 1))
    strided = torch.randn(2, 32, 6, 12)[:, ::2, :, ::2].copy_(grad)
    assert torch.equal(winograd_input_gradient(strided, weight.contiguous(), (2, 32, 6, 6), (1, 1)), expected)


def test_operator():
    """Schema, fake tensors, and the strides that the fake ones promise."""
    shape = (2, 32, 6, 6)
    grad, weight = operands(shape, 16)
    opcheck(torch.ops.stdl_engine.winograd_input_gradient.default, (grad, weight, [*shape], [1, 1]))
    found = winograd_input_gradient(grad, weight, shape, (1, 1))
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = winograd_input_gradient(torch.empty_like(grad), torch.empty_like(weight), shape, (1, 1))
    assert (fake.shape, fake.stride(), fake.dtype) == (found.shape, found.stride(), found.dtype)


def test_what_it_takes():
    weight = torch.randn(16, 16, 3, 3)
    assert takes_winograd(weight, [1, 1], [0, 2])
    assert not takes_winograd(weight, [1, 2], [1, 1])
    assert not takes_winograd(weight, [1, 1], [1, 3])
    assert not takes_winograd(torch.randn(16, 16, 3, 1), [1, 1], [1, 1])


@pytest.mark.parametrize(
    ("size", "stride", "way"),
    [
        ((3, 3), 1, "winograd"),
        ((2, 4), 1, "taps"),
        ((8, 1), 1, "taps"),
        ((2, 2), 1, "taps"),
        ((4, 8), 2, "taps"),
        ((4, 9), 2, "PyTorch"),
    ],
)
def test_which_way_is_chosen(size, stride, way, monkeypatch):
    """By the number of pixels beside the 16 output channels, the size of the map, and the stride."""
    module = sys.modules[input_gradient.__module__]
    monkeypatch.setattr(module, "winograd_input_gradient", lambda *_: "winograd")
    monkeypatch.setattr(module, "taps_input_gradient", lambda *_: "taps")
    weight, grad, shape = torch.randn(16, 16, 3, 3), torch.randn(1, 16, *size), (1, 16, *(stride * n for n in size))
    assert (input_gradient(grad, weight, shape, (stride, stride), (1, 1)) or "PyTorch") == way
