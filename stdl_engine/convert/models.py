"""SpikingJelly's models and blocks, taken apart: a model as its layers in order, a residual block as a unit."""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import nn

from ..units import ResidualBlock, SEWBlock, Shortcut, Unit

Refuse = Callable[[str], Exception]
"""Makes the error that says which module cannot be cut, from the reason."""


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """The parts of a SpikingJelly model with their names, in the order they run; None for a model not known here."""
    kinds = _kinds()
    if type(model) in kinds.get("resnets", ()):
        names = ("conv1", "bn1", "sn1", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool")
        return [*((name, getattr(model, name)) for name in names), ("flatten", nn.Flatten()), ("fc", model.fc)]
    if type(model) in kinds.get("vggs", ()):
        names = ("features", "avgpool")
        return [
            *((name, getattr(model, name)) for name in names),
            ("flatten", nn.Flatten()),
            ("classifier", model.classifier),
        ]
    return None


def is_block(module: nn.Module) -> bool:
    """Whether a module is one of SpikingJelly's residual blocks."""
    return any(type(module) in kind for name, kind in _kinds().items() if name.endswith("blocks"))


def block_unit(block: nn.Module, make_neuron: Callable[[], nn.Module], refuse: Refuse) -> Unit:
    """The engine's own block around the layers of one of SpikingJelly's, which it trains in place."""
    kinds = _kinds()
    if type(block) not in kinds["basic_blocks"]:
        raise refuse("only blocks of two convolutions are units here, this is a bottleneck")
    sew = type(block).__module__.endswith("sew_resnet")
    if sew and block.cnf != "ADD":
        raise refuse(f'its spikes are joined by cnf={block.cnf!r}, only "ADD" is a unit here')
    unit = (_AdoptedSEW if sew else _AdoptedResidual)(block, make_neuron)
    for neuron in (unit.neuron1, unit.neuron2, *(unit.shortcut or ())[2:]):
        neuron.overwrite = True  # as in the engine's own blocks: its input is batch norm's output and of no other use
    return unit


class _Adopted:
    """A block whose layers are someone else's; a block rebuilt from it is the engine's own."""

    kind: type[ResidualBlock]

    def __init__(self, block: nn.Module, make_neuron: Callable[[], nn.Module]) -> None:
        nn.Module.__init__(self)
        self.in_channels, self.out_channels = block.conv1.in_channels, block.conv2.out_channels
        self.stride, self.make_neuron = block.stride, make_neuron
        self.conv1, self.norm1, self.neuron1 = block.conv1, block.bn1, block.sn1
        self.conv2, self.norm2, self.neuron2 = block.conv2, block.bn2, block.sn2
        self.shortcut = None
        if block.downsample is not None:
            fires = [block.downsample_sn] if self.kind is SEWBlock else []
            self.shortcut = Shortcut(*block.downsample, *fires)

    def rebuild(self, in_channels: int, stride: int) -> ResidualBlock:
        return self.kind(in_channels, self.out_channels, self.make_neuron, stride=stride)


class _AdoptedResidual(_Adopted, ResidualBlock):
    kind = ResidualBlock


class _AdoptedSEW(_Adopted, SEWBlock):
    kind = SEWBlock


def _kinds() -> dict[str, tuple[type[nn.Module], ...]]:
    """SpikingJelly's classes by what they are; none where it was not imported, as there can be no such model then."""
    if "spikingjelly" not in sys.modules:
        return {}
    from spikingjelly.activation_based.model import sew_resnet, spiking_resnet, spiking_vgg

    return {
        "resnets": (sew_resnet.SEWResNet, spiking_resnet.SpikingResNet),
        "vggs": (spiking_vgg.SpikingVGG,),
        "basic_blocks": (sew_resnet.BasicBlock, spiking_resnet.BasicBlock),
        "bottleneck_blocks": (sew_resnet.Bottleneck, spiking_resnet.Bottleneck),
    }
