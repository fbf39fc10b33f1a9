"""ResNet-18 and ResNet-19 for small images: a 3×3 stride-1 stem, then residual blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from ..memory.layers import SpikeAvgPool2d
from ..units import ConvUnit, Head, MakeNeuron, ResidualBlock


def resnet18(
    in_channels: int, num_classes: int, channels: Callable[[int], int], make_neuron: MakeNeuron
) -> nn.Sequential:
    """64C3, then stages of 64, 128, 256 and 512 channels with two blocks each."""
    stem = ConvUnit(in_channels, channels(64), make_neuron)
    return residual_network(stem, (64, 128, 256, 512), (2, 2, 2, 2), num_classes, channels, make_neuron, ResidualBlock)


def resnet18_pooled(
    in_channels: int, num_classes: int, channels: Callable[[int], int], make_neuron: MakeNeuron
) -> nn.Sequential:
    """ResNet-18 with an average pool of stride 2 after the stem, for event frames of 224 × 224."""
    stem = ConvUnit(in_channels, channels(64), make_neuron, pool=SpikeAvgPool2d(2))
    return residual_network(stem, (64, 128, 256, 512), (2, 2, 2, 2), num_classes, channels, make_neuron, ResidualBlock)


def resnet19(
    in_channels: int, num_classes: int, channels: Callable[[int], int], make_neuron: MakeNeuron
) -> nn.Sequential:
    """128C3, then stages of 128, 256 and 512 channels with three, three and two blocks."""
    stem = ConvUnit(in_channels, channels(128), make_neuron)
    return residual_network(stem, (128, 256, 512), (3, 3, 2), num_classes, channels, make_neuron, ResidualBlock)


def residual_network(
    stem: ConvUnit,
    stages: Sequence[int],
    depths: Sequence[int],
    num_classes: int,
    channels: Callable[[int], int],
    make_neuron: MakeNeuron,
    block: type[ResidualBlock],
) -> nn.Sequential:
    """A stem and stages of blocks; every stage but the first halves the resolution in its first block."""
    units: list[nn.Module] = [stem]
    width = stem.out_channels
    for number, (stage, depth) in enumerate(zip(stages, depths, strict=True)):
        for place in range(depth):
            stride = 2 if number > 0 and place == 0 else 1
            units.append(block(width, channels(stage), make_neuron, stride=stride))
            width = channels(stage)
    return nn.Sequential(*units, Head(width, num_classes))
