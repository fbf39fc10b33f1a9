"""SpikingJelly's residual blocks as units.

A unit here holds the layers of a block, so that the block is trained in place, and runs them as the engine's own blocks
do. Units that are rebuilt from it, for auxiliary networks, are made of fresh layers.
"""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor, nn

from ..kernels.norm_lif import Pending
from ..memory.pieces import Carried, convolved, dense, fire_dense, fire_over, normed, plus
from ..units import MakeNeuron, ResidualBlock, SEWBlock, Shortcut, Unit, after_norm, conv
from .models import name_of


class Bottleneck(ResidualBlock):
    """1×1 conv - norm - neuron - 3×3 conv - norm - neuron - 1×1 conv - norm, plus the shortcut, then a neuron:
    "256B(s2)". The 3×3 convolution has `width` channels in `groups`.
    """

    letter = "B"

    def __init__(
        self, in_channels: int, out_channels: int, make_neuron: MakeNeuron, *, stride: int, width: int, groups: int
    ) -> None:
        nn.Module.__init__(self)
        self.in_channels, self.out_channels, self.stride, self.make_neuron = (
            in_channels,
            out_channels,
            stride,
            make_neuron,
        )
        self.conv1, self.norm1, self.neuron1 = conv(in_channels, width, 1), nn.BatchNorm2d(width), self.fresh_neuron()
        self.conv2, self.norm2, self.neuron2 = conv(width, width, 3, stride), nn.BatchNorm2d(width), self.fresh_neuron()
        if groups > 1:
            self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.conv3, self.norm3 = conv(width, out_channels, 1), nn.BatchNorm2d(out_channels)
        self.shortcut = self.build_shortcut() if stride != 1 or in_channels != out_channels else None
        self.neuron3 = self.fresh_neuron()

    def fresh_neuron(self) -> nn.Module:
        return after_norm(self.make_neuron)

    def forward(self, x: Tensor) -> Tensor:
        current, shortcut = self.current(x), self.shortcut(x) if self.shortcut else x
        total = plus(current, shortcut) if isinstance(current, Pending) else self.add(current, shortcut)
        return fire_dense(self.neuron3, total)

    def current(self, x: Tensor) -> Tensor | Pending:
        """The input of the last neuron, or of the sum before it."""
        spikes = fire_dense(self.neuron1, normed(self.norm1, self.neuron1, convolved(self.conv1, x)))
        spikes = fire_dense(self.neuron2, normed(self.norm2, self.neuron2, self.conv2(spikes)))
        return normed(self.norm3, self.neuron3, self.conv3(spikes))

    def rebuild(self, in_channels: int, stride: int) -> Self:
        width, groups = self.conv2.in_channels, self.conv2.groups
        return type(self)(in_channels, self.out_channels, self.make_neuron, stride=stride, width=width, groups=groups)


class Joined(ResidualBlock):
    """Joins spikes with the shortcut's by ADD, AND or IAND; a base class to put before a block that adds them."""

    cnf = "ADD"

    def add(self, spikes: Tensor, shortcut: Tensor | Carried) -> Tensor:
        if self.cnf == "ADD":
            return super().add(spikes, shortcut)
        other = dense(shortcut)
        if self.cnf == "AND":
            return spikes * other
        first, second = (spikes, other) if isinstance(self, Bottleneck) else (other, spikes)
        return first * (1.0 - second)

    def rebuild(self, in_channels: int, stride: int) -> Self:
        fresh = super().rebuild(in_channels, stride)
        fresh.cnf = self.cnf
        return fresh


class SEW(Joined, SEWBlock):
    """`SEWBlock` whose spikes are joined in any of the three ways."""


class SEWBottleneck(Joined, Bottleneck):
    """`Bottleneck` whose last neuron fires before its spikes are joined with the shortcut's: "256SEWB(s2)"."""

    letter = "SEWB"

    def build_shortcut(self) -> nn.Sequential:
        return Shortcut(*super().build_shortcut(), self.fresh_neuron())

    def forward(self, x: Tensor) -> Tensor:
        spikes = fire_over(self.neuron3, self.current(x))
        return self.add_spikes(spikes, self.shortcut(x) if self.shortcut else x)


KINDS: dict[str, type[ResidualBlock]] = {
    "sew_resnet.BasicBlock": SEW,
    "sew_resnet.Bottleneck": SEWBottleneck,
    "spiking_resnet.BasicBlock": ResidualBlock,
    "spiking_resnet.Bottleneck": Bottleneck,
}
"""The unit for each of SpikingJelly's blocks."""


def is_block(module: nn.Module) -> bool:
    """Whether a module is one of SpikingJelly's residual blocks."""
    return name_of(module) in KINDS


def block_unit(block: Any, make_neuron: MakeNeuron) -> Unit:
    """A unit around the layers of one of SpikingJelly's blocks."""
    kind = KINDS[name_of(block)]
    unit = kind.__new__(kind)
    nn.Module.__init__(unit)
    unit.in_channels, unit.stride, unit.make_neuron = block.conv1.in_channels, block.stride, make_neuron
    depth = 3 if issubclass(kind, Bottleneck) else 2
    for number in range(1, depth + 1):
        for ours, theirs in (("conv", "conv"), ("norm", "bn"), ("neuron", "sn")):
            setattr(unit, f"{ours}{number}", getattr(block, f"{theirs}{number}"))
    unit.out_channels = getattr(unit, f"conv{depth}").out_channels
    unit.shortcut = None
    if block.downsample is not None:
        last = [block.downsample_sn] if hasattr(block, "downsample_sn") else []
        unit.shortcut = Shortcut(*block.downsample, *last)
    if isinstance(unit, Joined):
        unit.cnf = block.cnf
    neurons = [getattr(unit, f"neuron{number}") for number in range(1, depth + 1)]
    for neuron in (*neurons, *(unit.shortcut or ())[2:]):
        neuron.overwrite = True  # as in the engine's own blocks: nothing else reads batch norm's output
    return unit
