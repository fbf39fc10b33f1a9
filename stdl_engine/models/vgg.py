"""VGG16 and VGG-11: conv units with average pools after some of them, and one linear classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from ..memory.layers import SpikeAvgPool2d
from ..units import ConvUnit, Head, MakeNeuron

POOL = "pool"


def vgg16(in_channels: int, num_classes: int, channels: Callable[[int], int], make_neuron: MakeNeuron) -> nn.Sequential:
    """Stages of 2, 2, 3, 3 and 3 conv units, a pool after each of the first four."""
    layers = (64, 64, POOL, 128, 128, POOL, 256, 256, 256, POOL, 512, 512, 512, POOL, 512, 512, 512)
    return _network(layers, in_channels, num_classes, channels, make_neuron)


def vgg11(in_channels: int, num_classes: int, channels: Callable[[int], int], make_neuron: MakeNeuron) -> nn.Sequential:
    """Four stages of two conv units, a pool after each."""
    layers = (64, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)
    return _network(layers, in_channels, num_classes, channels, make_neuron)


def _network(
    layers: Sequence[int | str],
    in_channels: int,
    num_classes: int,
    channels: Callable[[int], int],
    make_neuron: MakeNeuron,
) -> nn.Sequential:
    units: list[ConvUnit] = []
    for layer, following in zip(layers, (*layers[1:], None), strict=True):
        if isinstance(layer, int):
            pool = SpikeAvgPool2d(2) if following == POOL else None
            units.append(ConvUnit(in_channels, channels(layer), make_neuron, pool=pool))
            in_channels = units[-1].out_channels
    return nn.Sequential(*units, Head(in_channels, num_classes))
