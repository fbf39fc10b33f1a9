"""The gradient of a convolution's input where the weight is larger than the maps: one matrix product.

PyTorch's kernel reorders such a weight at every call, which takes longer than using it. With channels innermost the
weight is already a matrix, of output channels × inputs of a pixel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def is_weight_bound(weight: Tensor, grad: Tensor) -> bool:
    """Whether the inputs of all output pixels, written out, take no more memory than the weight."""
    pixels = grad.numel() // grad.shape[1]
    return pixels <= weight.shape[0]


def by_columns(
    grad: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """The gradient of the input from the output's: for every input of every pixel, then added up where they overlap."""
    images, channels, height, width = shape
    out_channels, _, kernel_height, kernel_width = weight.shape
    (down, right), (top, left), (out_height, out_width) = stride, padding, grad.shape[2:]
    columns = torch.mm(_innermost(grad).view(-1, out_channels), _innermost(weight).view(out_channels, -1))
    columns = columns.view(images, out_height, out_width, kernel_height, kernel_width, channels)
    total = grad.new_zeros(images, height + 2 * top, width + 2 * left, channels)
    for row in range(kernel_height):
        for column in range(kernel_width):
            under = total[:, row : row + down * out_height : down, column : column + right * out_width : right]
            under += columns[:, :, :, row, column]
    return total[:, top : top + height, left : left + width].contiguous().permute(0, 3, 1, 2)


def _innermost(t: Tensor) -> Tensor:
    """The tensor as [first, height, width, channels], which is its order in memory."""
    return t.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
