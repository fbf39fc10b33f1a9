"""A convolution over spikes as torch operators, which read one bit per spike, forward and for the weight's gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..layout import same_strides
from ..operators import Operator
from .geometry import Geometry


def takes(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, weight: Tensor, dilation: Sequence[int],
    groups: int,
) -> bool:  # fmt: skip
    """Whether the kernels can convolve such spikes and are worth it: float32 on CPU, channels innermost and a multiple
    of 16, and a window with at least 48 inputs per row."""
    if weight.device.type != "cpu" or len(shape) != 4:
        return False
    out_channels, channels, _, width = weight.shape
    return (
        dtype == weight.dtype == torch.float32
        and groups == 1
        and all(step == 1 for step in dilation)
        and channels % 16 == 0
        and out_channels % 16 == 0
        and channels * width >= 48
        and math.prod(shape) > 0
        and _has_channels_innermost(shape, strides, weight)
    )


def _has_channels_innermost(shape: Sequence[int], strides: Sequence[int], weight: Tensor) -> bool:
    """Whether a map is in the order channels_last and in no other; for a map of one pixel, which is in every order,
    whether its weight is."""
    _, channels, height, width = shape
    expected = (channels * height * width, 1, channels * width, channels)
    agree = same_strides(shape, strides, expected)
    ordered = height * width > 1 or (
        weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    )
    return agree and channels > 1 and ordered


def _convolve(
    bits: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    from . import cpu

    out = _empty_output(bits, weight, shape, stride, padding)
    geometry = Geometry.of(shape, weight.shape, stride, padding)
    cpu.forward(bits, _innermost(weight), out, geometry)
    return out


def _empty_output(
    bits: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    out_shape = Geometry.of(shape, weight.shape, stride, padding).out_shape
    return _empty_map(out_shape, bits)


def _weight_gradient(
    bits: Tensor, grad: Tensor, shape: Sequence[int], weight_shape: Sequence[int], stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:  # fmt: skip
    from . import cpu

    geometry = Geometry.of(shape, weight_shape, stride, padding)
    return cpu.weight_gradient(bits, _of_output(grad, geometry), geometry)


def _empty_weight(
    bits: Tensor, grad: Tensor, shape: Sequence[int], weight_shape: Sequence[int], stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:  # fmt: skip
    return _empty_map(weight_shape, bits)


def _add_weight_gradient(
    into: Tensor, bits: Tensor, grad: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> None:
    from . import cpu

    geometry = Geometry.of(shape, into.shape, stride, padding)
    cpu.weight_gradient(bits, _of_output(grad, geometry), geometry, into)


def _input_gradient(grad: Tensor, weight: Tensor, shape: Sequence[int], padding: Sequence[int]) -> Tensor:
    from . import winograd

    found, geometry = _empty_map(shape, grad), Geometry.of(shape, weight.shape, (1, 1), padding)
    winograd.input_gradient(_of_output(grad, geometry), _innermost(weight), found, geometry)
    return found


def _empty_input(grad: Tensor, weight: Tensor, shape: Sequence[int], padding: Sequence[int]) -> Tensor:
    return _empty_map(shape, grad)


def _input_gradient_by_taps(
    grad: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    from . import taps

    found, geometry = _empty_map(shape, grad), Geometry.of(shape, weight.shape, stride, padding)
    taps.input_gradient(_of_output(grad, geometry), _innermost(weight), found, geometry)
    return found


def _empty_input_by_taps(
    grad: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    return _empty_map(shape, grad)


def _of_output(grad: Tensor, geometry: Geometry) -> Tensor:
    """The output's gradient as kernels read it."""
    if grad.shape != geometry.out_shape or grad.dtype != torch.float32:
        raise ValueError(
            f"the gradient of the output is float32 and {geometry.out_shape}, and {grad.dtype} of {tuple(grad.shape)} "
            "was given."
        )
    return _innermost(grad)


def _innermost(t: Tensor) -> Tensor:
    """With channels innermost in memory."""
    return t.contiguous(memory_format=torch.channels_last)


def _empty_map(shape: Sequence[int], beside: Tensor) -> Tensor:
    """What the kernels write: float32, whatever the default is, with channels innermost."""
    layout = torch.channels_last
    return torch.empty(tuple(shape), dtype=torch.float32, device=beside.device, memory_format=layout)


spike_conv = Operator("spike_conv", _convolve, _empty_output)
"""The convolution of spikes of this shape, channels innermost, given as bits; its output has channels innermost."""
spike_conv_weight_gradient = Operator("spike_conv_weight_gradient", _weight_gradient, _empty_weight)
"""The gradient of the weight from the output's, channels innermost."""
spike_conv_add_weight_gradient = Operator(
    "spike_conv_add_weight_gradient", _add_weight_gradient, lambda *_: None, mutates=("into",)
)
"""Adds the same to a tensor whose channels are innermost."""
winograd_input_gradient = Operator("winograd_input_gradient", _input_gradient, _empty_input)
"""The gradient of the input from the output's, of a 3 × 3 convolution with stride 1; channels innermost."""
taps_input_gradient = Operator("taps_input_gradient", _input_gradient_by_taps, _empty_input_by_taps)
"""The gradient of the input from the output's, of any convolution that `takes` takes; channels innermost."""
