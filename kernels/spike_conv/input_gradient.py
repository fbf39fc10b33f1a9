"""The gradient of a convolution's input, by whichever way is fastest."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .ops import taps_input_gradient, winograd_input_gradient


def input_gradient(
    grad: Tensor, weight: Tensor, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor | None:
    """The gradient of the input of a convolution that `takes` takes; None where PyTorch's kernel is the fastest."""
    winograd = takes_winograd(weight, stride, padding)
    # On maps of 2 × 2, four of the nine taps are inside: no more products than Winograd's algorithm has.
    most = weight.shape[0] // 2 if winograd and max(grad.shape[2:]) > 2 else 2 * weight.shape[0]
    if grad.numel() // grad.shape[1] <= most:
        return taps_input_gradient(grad, weight, shape, stride, padding)
    return winograd_input_gradient(grad, weight, shape, padding) if winograd else None


def takes_winograd(weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether `winograd_input_gradient` can compute the gradient of the input of a convolution that `takes` takes."""
    return weight.shape[2:] == (3, 3) and all(step == 1 for step in stride) and all(pad <= 2 for pad in padding)
