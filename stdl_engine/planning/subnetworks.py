"""The subnetworks of a plan as modules: the model's own units, and new auxiliary networks to train them with."""

from __future__ import annotations

import torch
from torch import Tensor, nn
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
    """The subnetworks of a plan. Units are the model's own; auxiliary networks are new, and like the model in device,
    dtype and order of memory.
    """
    model = network.model
    units = list(model)[:-1]
    search = Search(units, network.shapes, network.memory, plan.variant)
    parameter: Tensor = next(model.parameters())
    subnetworks = []
    for part in plan.parts:
        if part.auxiliary is None:
            classifier = model[-1]
        else:
            with torch.device(parameter.device):
                classifier = search.build(part.units.stop - 1, part.auxiliary, network.head.num_classes)
            if parameter.dtype != torch.get_default_dtype():
                classifier = classifier.to(parameter.dtype)
            if any(suggest_memory_format(p) is torch.channels_last for p in model.parameters() if p.dim() == 4):
                classifier = classifier.to(memory_format=torch.channels_last)
        run = nn.Sequential(*(units[index] for index in part.units))
        subnetworks.append(Subnetwork(run, classifier, part.auxiliary is None))
    return subnetworks
