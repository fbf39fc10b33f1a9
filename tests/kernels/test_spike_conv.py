"""The convolution that reads bits against PyTorch's on the dense spikes in float64: no product, only sums, so rounding
is all that may differ.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.library import opcheck

from stdl_engine.kernels.spike_conv import (
    spike_conv,
    spike_conv_add_weight_gradient,
    spike_conv_weight_gradient,
    takes,
    taps_input_gradient,
)

LAST = torch.channels_last


def accepts(spikes, weight, dilation, groups):
    return takes(spikes.shape, spikes.stride(), spikes.dtype, weight, dilation, groups)


def make_spikes(shape, rate=0.3) -> tuple[Tensor, Tensor]:
    """Dense spikes, channels innermost, and their bits."""
    spikes = (torch.rand(shape) < rate).float().contiguous(memory_format=LAST)
    bits = np.packbits(spikes.permute(0, 2, 3, 1).flatten().bool().numpy(), bitorder="little")
    return spikes, torch.from_numpy(bits)


def near(found: Tensor, exact: Tensor, terms: int) -> None:
    """Within the rounding of a sum of that many terms."""
    assert found.shape == exact.shape
    scale = exact.abs().max().item()
    assert (found - exact).abs().max().item() <= 6e-8 * terms**0.5 * 4 * max(scale, 1e-30)


def exact_gradients(spikes, weight, grad, stride, padding) -> tuple[Tensor, Tensor]:
    """The gradients of input and weight in float64."""
    settings = [*stride], [*padding], [1, 1], False, [0, 0], 1, [True, True, False]
    tensors = (t.double() for t in (grad, spikes, weight))
    return torch.ops.aten.convolution_backward(*tensors, None, *settings)[:2]


def check(shape, weight_shape, stride=(1, 1), padding=(1, 1), rate=0.3) -> None:
    spikes, bits = make_spikes(shape, rate)
    weight = torch.randn(weight_shape)
    terms = weight[0].numel()
    exact = torch.conv2d(spikes.double(), weight.double(), None, stride, padding)
    found = spike_conv(bits, weight, shape, stride, padding)
    assert found.is_contiguous(memory_format=LAST)
    near(found, exact, terms)
    grad = torch.randn(found.shape)
    exact_x, exact_weight = exact_gradients(spikes, weight, grad, stride, padding)
    found = spike_conv_weight_gradient(bits, grad, shape, weight_shape, stride, padding)
    assert found.is_contiguous(memory_format=LAST)
    near(found, exact_weight, grad.numel() // grad.shape[1])
    before = torch.randn_like(found)
    added = before.clone()
    spike_conv_add_weight_gradient(added, bits, grad, shape, stride, padding)
    assert torch.equal(added, before + found)
    near(taps_input_gradient(grad, weight, shape, stride, padding), exact_x, terms)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 3), (2, 7)], ids=str)
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 3)], ids=str)
def test_kernels_and_strides(kernel, stride):
    check((3, 48, 9, 11), (32, 48, *kernel), stride, (kernel[0] // 2, kernel[1] // 2))


@pytest.mark.parametrize(("channels", "out_channels"), [(16, 16), (16, 96), (32, 48), (64, 32), (80, 16), (128, 64)])
def test_channels(channels, out_channels):
    """One vector of output channels or two at a time; runs that fill their words and runs that do not."""
    check((2, channels, 6, 6), (out_channels, channels, 3, 3))


@pytest.mark.parametrize("size", [1, 2, 7, 8, 16, 23, 33])
def test_sizes(size):
    """Fewer pixels than a word of them, more than a ticket of them, and numbers that divide by neither."""
    check((3, 16, size, size), (16, 16, 3, 3))


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.5, 1.0])
def test_firing_rates(rate):
    check((2, 16, 8, 8), (32, 16, 3, 3), rate=rate)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.tuples(st.integers(5, 12), st.integers(5, 12)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)), st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
)  # fmt: skip
def test_any_geometry(images, channels, out_channels, size, kernel, stride, padding):
    check((images, 16 * channels, *size), (16 * out_channels, 16 * channels, *kernel), stride, padding)


def test_the_same_on_any_number_of_threads():
    spikes, bits = make_spikes((8, 32, 16, 16))
    weight, found = torch.randn(64, 32, 3, 3), []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        out = spike_conv(bits, weight, spikes.shape, (1, 1), (1, 1))
        grad = torch.sin(torch.arange(out.numel(), dtype=torch.float32)).view(out.shape)
        found.append((out, spike_conv_weight_gradient(bits, grad, spikes.shape, weight.shape, (1, 1), (1, 1))))
    torch.set_num_threads(before)
    for out, gradient in found[1:]:
        assert torch.equal(out, found[0][0])
        assert torch.equal(gradient, found[0][1])


def test_weights_that_no_spike_reaches_do_not_matter():
    """A dense convolution would make NaN of 0 times infinity."""
    spikes, _ = make_spikes((2, 16, 6, 6))
    spikes[:, 3] = 0
    bits = torch.from_numpy(np.packbits(spikes.permute(0, 2, 3, 1).flatten().bool().numpy(), bitorder="little"))
    weight = torch.randn(16, 16, 3, 3)
    expected = spike_conv(bits, weight, spikes.shape, (1, 1), (1, 1))
    weight[:, 3] = float("inf")
    assert torch.equal(spike_conv(bits, weight, spikes.shape, (1, 1), (1, 1)), expected)


@pytest.mark.parametrize(
    ("weight_shape", "stride", "padding", "message"),
    [
        ((16, 32, 3, 3), 1, 1, r"of 32 channels got a map of 16: \(2, 16, 4, 4\)"),
        ((16, 16, 3, 3), 1, -1, r"has padding \(-1, -1\)"),
        ((16, 16, 3, 3), 0, 1, r"and stride \(0, 0\)"),
        ((16, 16, 7, 7), 1, 1, r"a kernel of 7 × 7 does not fit maps of 4 × 4 with padding \(1, 1\)"),
    ],
)
def test_what_is_no_convolution_is_refused(weight_shape, stride, padding, message):
    """By all kernels, and before they read or write anything."""
    _, bits = make_spikes((2, 16, 4, 4))
    weight, grad, shape = torch.randn(weight_shape), torch.randn(2, 16, 4, 4), (2, 16, 4, 4)
    steps, pads = (stride,) * 2, (padding,) * 2
    for run in (
        lambda: spike_conv(bits, weight, shape, steps, pads),
        lambda: spike_conv_weight_gradient(bits, grad, shape, weight_shape, steps, pads),
        lambda: spike_conv_add_weight_gradient(weight, bits, grad, shape, steps, pads),
        lambda: taps_input_gradient(grad, weight, shape, steps, pads),
    ):
        with pytest.raises(ValueError, match=message):
            run()


def test_operands_that_do_not_fit_are_refused():
    _, bits = make_spikes((2, 16, 4, 4))
    weight, grad, shape = torch.randn(16, 16, 3, 3), torch.randn(2, 16, 4, 4), (2, 16, 4, 4)
    with pytest.raises(ValueError, match="are 64 bytes, and 63 were given"):
        spike_conv(bits[:-1], weight, shape, (1, 1), (1, 1))
    for wrong in (grad.double(), grad[:1], grad[..., :3]):
        with pytest.raises(ValueError, match="the gradient of the output is float32 and"):
            spike_conv_weight_gradient(bits, wrong, shape, weight.shape, (1, 1), (1, 1))
        with pytest.raises(ValueError, match="the gradient of the output is float32 and"):
            taps_input_gradient(wrong, weight, shape, (1, 1), (1, 1))
    expected = spike_conv(bits, weight, shape, (1, 1), (1, 1))
    apart = torch.stack([bits, bits ^ 255], 1)[:, 0]
    assert torch.equal(spike_conv(apart, weight, shape, (1, 1), (1, 1)), expected)


def test_whatever_the_default_device():
    _, bits = make_spikes((2, 16, 4, 4))
    weight, shape = torch.randn(16, 16, 3, 3), (2, 16, 4, 4)
    expected = spike_conv(bits, weight, shape, (1, 1), (1, 1))
    with torch.device("meta"):
        found = spike_conv(bits, weight, shape, (1, 1), (1, 1))
    assert torch.equal(found, expected)


def test_operators():
    """Schema, fake tensors, and the strides that the fake ones promise."""
    spikes, bits = make_spikes((2, 16, 6, 6))
    weight, grad = torch.randn(32, 16, 3, 3), torch.randn(2, 32, 3, 3)
    shape, stride, padding = [*spikes.shape], [2, 2], [1, 1]
    forward, backward = torch.ops.stdl_engine.spike_conv, torch.ops.stdl_engine.spike_conv_weight_gradient
    opcheck(forward.default, (bits, weight, shape, stride, padding))
    opcheck(backward.default, (bits, grad, shape, [*weight.shape], stride, padding))
    into = torch.zeros_like(weight, memory_format=LAST)
    opcheck(torch.ops.stdl_engine.spike_conv_add_weight_gradient.default, (into, bits, grad, shape, stride, padding))
    out = spike_conv(bits, weight, shape, stride, padding)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = spike_conv(torch.empty_like(bits), torch.empty_like(weight), shape, stride, padding)
    assert (fake.shape, fake.stride(), fake.dtype) == (out.shape, out.stride(), out.dtype)


class TestTakes:
    def test_what_it_can(self):
        assert accepts(make_spikes((2, 16, 6, 6))[0], torch.randn(32, 16, 3, 3), [1, 1], 1)

    @pytest.mark.parametrize(
        ("shape", "weight_shape"),
        [((2, 8, 6, 6), (16, 8, 3, 3)), ((2, 16, 6, 6), (8, 16, 3, 3)), ((2, 16, 6, 6), (16, 16, 1, 1)),
         ((0, 16, 6, 6), (16, 16, 3, 3))],
        ids=["input channels", "output channels", "a window too small to pay", "no images"],
    )  # fmt: skip
    def test_shapes_it_leaves(self, shape, weight_shape):
        assert not accepts(torch.zeros(shape).contiguous(memory_format=LAST), torch.randn(weight_shape), [1, 1], 1)

    def test_one_pixel_is_in_the_order_of_its_weight(self):
        """It is in every order itself."""
        pixel, weight = make_spikes((2, 16, 1, 1))[0], torch.randn(32, 16, 3, 3)
        assert accepts(pixel, weight.contiguous(memory_format=LAST), [1, 1], 1)
        assert not accepts(pixel, weight, [1, 1], 1)
        assert not accepts(pixel, torch.randn(32, 48, 1, 1)[:, :16].contiguous(), [1, 1], 1)

    def test_other_things_it_leaves(self):
        spikes, weight = make_spikes((2, 16, 6, 6))[0], torch.randn(32, 16, 3, 3)
        assert not accepts(spikes.contiguous(), weight, [1, 1], 1)
        assert not accepts(spikes.double(), weight.double(), [1, 1], 1)
        assert not accepts(spikes.bfloat16(), weight.bfloat16(), [1, 1], 1)
        assert not accepts(spikes, weight, [2, 2], 1)
        assert not accepts(spikes, weight, [1, 1], 2)
        assert not accepts(spikes.to("meta"), weight.to("meta"), [1, 1], 1)
