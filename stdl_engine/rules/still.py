"""Whether the network's input is a still image, and which convolution reads it and may run once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from ..memory.layers import SpikeConv2d
from ..memory.spikes import Kept
from ..neurons import has_hooks
from ..units import ConvUnit


def still_image(frames: Iterable[Kept]) -> Tensor | None:
    """The tensor shown at every time step, if there are several steps and it is always the same."""
    if not isinstance(frames, Sequence) or len(frames) == 1 or not isinstance(frames[0], Tensor):
        return None
    return frames[0] if all(frame is frames[0] for frame in frames) else None


def first_convolution(unit: nn.Module) -> SpikeConv2d | None:
    """The convolution of a unit's input, if its output goes to a plain batch norm and to nothing else."""
    if type(unit) is not ConvUnit or any(map(has_hooks, unit.modules())):
        return None
    is_plain = type(unit.norm) is nn.BatchNorm2d
    return unit.conv if is_plain and type(unit.conv) is SpikeConv2d else None
