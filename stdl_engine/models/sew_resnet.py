"""SEWResNet-34: residual blocks that add spikes, for ImageNet."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ..memory.layers import SpikeAvgPool2d
from ..units import ConvUnit, MakeNeuron, SEWBlock
from .resnet import residual_network


def sew_resnet34(
    in_channels: int, num_classes: int, channels: Callable[[int], int], make_neuron: MakeNeuron
) -> nn.Sequential:
    """64C3 and AP(k3s2p1), then stages of 64, 128, 256 and 512 channels with three, four, six and three blocks."""
    stem = ConvUnit(in_channels, channels(64), make_neuron, pool=SpikeAvgPool2d(3, 2, 1))
    return residual_network(stem, (64, 128, 256, 512), (3, 4, 6, 3), num_classes, channels, make_neuron, SEWBlock)
