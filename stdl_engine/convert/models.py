"""SpikingJelly's models as sequences of their layers, in the order they run.

Models and blocks are recognised by the names of their classes: nothing of SpikingJelly is imported here.
"""

from __future__ import annotations

from typing import Any

from torch import nn

PACKAGES = ("spikingjelly.activation_based.model.", "spikingjelly.clock_driven.model.")
"""The packages of SpikingJelly's models: from version 0.0.0.0.13 on, and before."""

RESNETS = ("sew_resnet.SEWResNet", "spiking_resnet.SpikingResNet")
VGGS = ("spiking_vgg.SpikingVGG",)
PARAMETRIC_LIF_NETS = tuple(
    f"parametric_lif_net.{name}"
    for name in ("MNISTNet", "FashionMNISTNet", "NMNISTNet", "CIFAR10Net", "CIFAR10DVSNet", "DVSGestureNet")
)


def layers_of(model: Any) -> list[tuple[str, nn.Module]] | None:
    """The parts of a SpikingJelly model with their names, in the order they run; None for a model unknown here."""
    kind = name_of(model)
    if kind in RESNETS:
        names = ("conv1", "bn1", "sn1", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool")
        return [*((name, getattr(model, name)) for name in names), ("flatten", nn.Flatten()), ("fc", model.fc)]
    if kind in VGGS:
        before = [(name, getattr(model, name)) for name in ("features", "avgpool")]
        return [*before, ("flatten", nn.Flatten()), ("classifier", model.classifier)]
    if kind in PARAMETRIC_LIF_NETS:
        return [("conv_fc", model.conv_fc)]
    return None


def name_of(module: nn.Module) -> str:
    """The SpikingJelly class of a module, for example "sew_resnet.BasicBlock"; "" for a module of any other class."""
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    return next((name.removeprefix(package) for package in PACKAGES if name.startswith(package)), "")
