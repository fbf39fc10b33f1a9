"""Milliseconds of convolutions that read spikes as bits, and of PyTorch's on dense spikes.

The 3 × 3 convolutions of ResNet-18 on CIFAR, at a quarter of its width with a batch of 64 and at full width with 8,
with channels innermost for both: forward, the weight's gradient, and where it is ours, the input's gradient. 15% of the
neurons fire. Ours skips words of bits in which none does, which is the padding here.
"""

from __future__ import annotations

import torch

from stdl_engine import lif_step_
from stdl_engine.kernels import bits_of
from stdl_engine.kernels.spike_conv import (
    input_gradient,
    spike_conv,
    spike_conv_weight_gradient,
)

from .session import Session
from .timing import Case, ratios

DEVICE = "cpu"
SHAPES = (  # batch, channels, output channels, height and width, stride
    (64, 16, 16, 32, 1), (64, 16, 32, 32, 2), (64, 32, 32, 16, 1), (64, 64, 64, 8, 1), (64, 128, 128, 4, 1),
    (8, 64, 64, 32, 1), (8, 64, 128, 32, 2), (8, 128, 128, 16, 1), (8, 256, 256, 8, 1), (8, 512, 512, 4, 1),
)  # fmt: skip
RATE = 0.15
TARGET = 1.0
PADDING = (1, 1)


def run(session: Session) -> None:
    for shape in SHAPES:
        compare(session, *shape)


def compare(session: Session, batch: int, channels: int, out_channels: int, size: int, stride: int) -> None:
    """One convolution by us and by PyTorch."""
    fires = torch.rand(batch, channels, size, size) < RATE
    currents = (2.0 * fires).contiguous(memory_format=torch.channels_last)
    spikes = lif_step_(currents, torch.zeros_like(currents))
    bits, strides = bits_of(spikes), (stride, stride)
    weight = torch.randn(out_channels, channels, 3, 3).contiguous(memory_format=torch.channels_last)
    grad = torch.randn_like(torch.conv2d(spikes, weight, None, strides, PADDING))

    def dense_gradient(of_input: bool) -> torch.Tensor:
        wanted = [of_input, not of_input, False]
        options = [stride, stride], [1, 1], [1, 1], False, [0, 0], 1, wanted
        return torch.ops.aten.convolution_backward(grad, spikes, weight, None, *options)

    pairs = {
        "forward": (
            lambda: spike_conv(bits, weight, spikes.shape, strides, PADDING),
            lambda: torch.conv2d(spikes, weight, None, strides, PADDING),
        ),
        "gradient of the weight": (
            lambda: spike_conv_weight_gradient(bits, grad, spikes.shape, weight.shape, strides, PADDING),
            lambda: dense_gradient(of_input=False),
        ),
    }
    if input_gradient(grad, weight, spikes.shape, strides, PADDING) is not None:
        pairs["gradient of the input"] = (
            lambda: input_gradient(grad, weight, spikes.shape, strides, PADDING),
            lambda: dense_gradient(of_input=True),
        )
    cases = {(what, who): Case(pair[who]) for what, pair in pairs.items() for who in (0, 1)}
    label = f"{batch}×{channels}×{size}×{size} to {out_channels}, stride {stride}"
    times = session.time(label, cases, calls=5)
    for what in pairs:
        ours, theirs = times[what, 0], times[what, 1]
        fields = {"who": "spike_conv", "shape": label, "dtype": "float32"}
        session.record(what, "ms", [t * 1e3 for t in ours], **fields)
        session.record(what, "x", ratios(theirs, ours), against="PyTorch", at_least=TARGET, **fields)
