"""A still image, shown at every time step: the first convolution gives the same map each time, and runs once.

Every time step has its own backward pass, so gradients are the same to the last bit. The map takes no extra room: batch
norm keeps it for backward anyway, and with gradients through time it is kept once instead of once per time step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from torch import Tensor


class HasStill(Protocol):
    """A convolution that may run once (`SpikeConv2d`)."""

    still: StillImage | None


class StillImage:
    """An image, and what one convolution gave for it."""

    def __init__(self, image: Tensor) -> None:
        self.image = image
        self.output: Tensor | None = None

    def forget(self) -> None:
        """Free the map, when no time step will ask for it."""
        self.output = None


@contextlib.contextmanager
def showing(image: Tensor, conv: HasStill | None) -> Iterator[StillImage | None]:
    """Inside, this convolution (a `SpikeConv2d`, if there is one) of this image runs once, as long as what it gave is
    not forgotten."""
    if conv is None:
        yield None
        return
    still = conv.still = StillImage(image)
    try:
        yield still
    finally:
        conv.still = None
