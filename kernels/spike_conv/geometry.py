"""The sizes of a convolution, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Geometry(NamedTuple):
    """A convolution of `images` of channels × height × width with zeros around them."""

    images: int
    channels: int
    height: int
    width: int
    out_channels: int
    kernel_height: int
    kernel_width: int
    stride: tuple[int, int]
    padding: tuple[int, int]

    @classmethod
    def of(cls, shape: Sequence[int], weight: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Geometry:
        """From the shapes of the input and of the weight; raises ValueError if there is no such convolution."""
        images, channels, height, width = shape
        out_channels, expected, *window = weight
        sizes = images, channels, height, width, out_channels, window[0], window[1]
        found = cls(*sizes, (stride[0], stride[1]), (padding[0], padding[1]))
        if channels != expected:
            raise ValueError(f"a convolution of {expected} channels got a map of {channels}: {tuple(shape)}.")
        if min(found.padding) < 0 or min(found.stride) < 1:
            raise ValueError(
                f"a convolution has padding {found.padding} and stride {found.stride}: it takes padding of 0 or more, "
                "and a stride of 1 or more."
            )
        if any(taps > size for taps, size in zip(window, found.padded, strict=True)):
            raise ValueError(
                f"a kernel of {window[0]} × {window[1]} does not fit maps of {height} × {width} with padding "
                f"{found.padding}: give it larger maps or more padding."
            )
        return found

    @property
    def padded(self) -> tuple[int, int]:
        return self.height + 2 * self.padding[0], self.width + 2 * self.padding[1]

    @property
    def out_size(self) -> tuple[int, int]:
        height, width = self.padded
        return (height - self.kernel_height) // self.stride[0] + 1, (width - self.kernel_width) // self.stride[1] + 1

    @property
    def pixels(self) -> int:
        """Pixels of the output, over all images."""
        height, width = self.out_size
        return self.images * height * width

    @property
    def run(self) -> int:
        """Inputs of an output pixel from one row of the image: adjacent in memory, and so are their weights."""
        return self.kernel_width * self.channels

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        return self.images, self.out_channels, *self.out_size
