"""The subnetworks of a plan as modules: the model's own units, and new auxiliary networks to train them with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._prims_common import suggest_memory_format

from .auxiliary import Search
from .network import Network
from .plan import Plan


class Subnetwork(nn.Module):
    """A run of units and the classifier it learns from: its auxiliary network, or for the last one the model's own
    head.
    """

    def __init__(self, units: nn.Sequential, classifier: nn.Module, is_last: bool) -> None:
        super().__init__()
        self.units, self.classifier, self.is_last = units, classifier, is_last

    def classifier_layers(self) -> list[nn.Module]:
        """The parts of the auxiliary network in order, or the head alone."""
        return list(self.classifier) if isinstance(self.classifier, nn.Sequential) else [self.classifier]


def build(network: Network, plan: Plan) -> list[Subnetwork]:
    """The subnetworks of a plan. Units are the model's own. Auxiliary networks are new, with the model's device, dtype
    and memory order.
    """
    model = network.model
    units: list[Any] = list(model)[:-1]
    search = Search(units, network.shapes, network.memory, plan.variant)
    subnetworks = []
    for part in plan.parts:
        if part.auxiliary is None:
            classifier = model[-1]
        else:
            with torch.device(next(model.parameters()).device):
                classifier = search.build(part.units.stop - 1, part.auxiliary, network.head.num_classes)
            _make_alike(classifier, model)
        run = nn.Sequential(*(units[index] for index in part.units))
        subnetworks.append(Subnetwork(run, classifier, part.auxiliary is None))
    return subnetworks


def _make_alike(module: nn.Module, model: nn.Module) -> None:
    """Give a new module the dtype and the memory order of a model's parameters."""
    dtype = next(model.parameters()).dtype
    is_channels_last = any(suggest_memory_format(p) is torch.channels_last for p in model.parameters() if p.dim() == 4)
    # Not module.to(...): it swaps the content of parameters, which fake tensors refuse.
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            layout = torch.channels_last if is_channels_last and parameter.dim() == 4 else torch.preserve_format
            value = parameter.detach().to(dtype, memory_format=layout)
            part._parameters[name] = nn.Parameter(value, requires_grad=parameter.requires_grad)
        for name, buffer in list(part.named_buffers(recurse=False)):
            if buffer.is_floating_point():
                part._buffers[name] = buffer.to(dtype)
