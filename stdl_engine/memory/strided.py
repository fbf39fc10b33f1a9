"""A 1 × 1 convolution with a stride reads only every n-th pixel: here those pixels are taken first.

PyTorch's own kernel for the weight's gradient of such a convolution corrupts memory, or hangs, on CPUs without AVX-512
where channels are innermost and fewer than 8 (docs/cpus.md). `SpikeConv2d` never calls it. A model may also have plain
`nn.Conv2d` layers, or another library's: while a rule has borrowed them, they do not call it either.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable

from torch import Tensor, nn

from ..neurons import in_class


def skips_pixels(conv: nn.Conv2d) -> bool:
    """Whether a convolution reads one pixel for each output, and not all pixels."""
    return conv.kernel_size == (1, 1) and conv.stride != (1, 1) and conv.padding in ((0, 0), "valid")


class PixelsFirst(nn.Conv2d):
    """`nn.Conv2d`; where it skips pixels, it takes those it reads first and convolves them without a stride."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not skips_pixels(self):
            return super()._conv_forward(x, weight, bias)
        down, right = self.stride
        return nn.functional.conv2d(x[..., ::down, ::right], weight, bias, groups=self.groups)


def taking_pixels_first(modules: Iterable[nn.Module]) -> contextlib.AbstractContextManager[None]:
    """Inside, convolutions that skip pixels are `PixelsFirst`; afterwards they are what they were."""
    skipping = (
        module for module in dict.fromkeys(modules)
        if isinstance(module, nn.Conv2d) and not isinstance(module, PixelsFirst) and skips_pixels(module)
    )  # fmt: skip
    return in_class(skipping, _with_pixels_first)


@functools.cache
def _with_pixels_first(kind: type[nn.Conv2d]) -> type[nn.Conv2d]:
    """A class that does what `kind` does, its own `forward` included, but convolves as `PixelsFirst`."""
    if kind is nn.Conv2d:
        return PixelsFirst
    return type(kind.__name__, (kind, PixelsFirst), {"__module__": kind.__module__})
