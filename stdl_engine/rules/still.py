"""Which convolution sees the network's input, and may run once where that is a still image."""

from __future__ import annotations

from torch import nn

from ..memory.layers import SpikeConv2d
from ..neurons import has_hooks
from ..units import ConvUnit


def first_convolution(unit: nn.Module) -> SpikeConv2d | None:
    """The convolution of a unit's input, if its output goes to a plain batch norm and nobody else sees it."""
    if type(unit) is not ConvUnit or any(map(has_hooks, unit.modules())):
        return None
    is_plain = type(unit.norm) is nn.BatchNorm2d
    return unit.conv if is_plain and type(unit.conv) is SpikeConv2d else None
