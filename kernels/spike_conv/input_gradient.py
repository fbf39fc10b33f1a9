"""The gradient of a convolution's input, by whichever way is fastest.

Where the weight is larger than the maps, it is a product of matrices for each tap. A tap is one place of the kernel.
PyTorch's kernel reorders such a weight at every call, which takes longer than using it. With channels innermost the
weight of a tap is already a matrix, of output channels × channels. Only the pixels for which a tap lies inside the
image take part: of small maps, a third of all taps lie outside.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .ops import winograd_input_gradient


def input_gradient(
    grad: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor | None:
    """The gradient of the input of a convolution that `takes` takes; None where PyTorch's kernel is the fastest."""
    out_channels, pixels = weight.shape[0], grad.numel() // grad.shape[1]
    if takes_winograd(weight, stride, padding) and 2 * pixels > out_channels:
        return winograd_input_gradient(grad, weight, shape, padding)
    return by_taps(grad, weight, shape, stride, padding) if pixels <= out_channels else None


def takes_winograd(weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether `winograd_input_gradient` can compute the gradient of the input of a convolution that `takes` takes."""
    return weight.shape[2:] == (3, 3) and all(step == 1 for step in stride) and all(pad <= 2 for pad in padding)


def by_taps(
    grad: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """The gradient of the input from the output's: what each tap gives, added up where taps overlap."""
    images, channels, *size = shape
    grad, weight = _innermost(grad), _innermost(weight)
    total = grad.new_zeros(images, *size, channels)
    rows, columns = (
        [_inside(tap, *along) for tap in range(taps)]
        for taps, *along in zip(weight.shape[1:3], grad.shape[1:3], size, stride, padding, strict=True)
    )
    for row, (from_rows, to_rows) in enumerate(rows):
        for column, (from_columns, to_columns) in enumerate(columns):
            seen = grad[:, from_rows, from_columns]
            given = torch.mm(seen.reshape(-1, seen.shape[-1]), weight[:, row, column])
            total[:, to_rows, to_columns] += given.view(*seen.shape[:-1], channels)
    return total.permute(0, 3, 1, 2)


def _inside(tap: int, outputs: int, size: int, stride: int, padding: int) -> tuple[slice, slice]:
    """In one direction, the outputs for which a tap lies inside the image, and the inputs that it then reads."""
    first = max(0, -((tap - padding) // stride))
    last = min(outputs - 1, (size - 1 + padding - tap) // stride)
    place = first * stride + tap - padding
    count = max(0, last - first + 1)
    return slice(first, first + count), slice(place, place + count * stride, stride)


def _innermost(t: Tensor) -> Tensor:
    """The tensor as [first, height, width, channels], which is its order in memory."""
    return t.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
