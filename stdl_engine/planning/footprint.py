"""What a part of a network keeps in memory during a training step, in elements a sample, counted without running it.

The paper's count ("paper"): three maps a neuron layer (the conv output kept for batch norm, the membrane, the
spikes), one a shortcut conv, one a pool. As every neuron layer follows one conv, that is one map for each conv or
pool and two for each neuron layer, so a user's own block is counted by what it is made of. "lean" is the same network
with spikes as bits: 1 + 1/32 maps a neuron layer. Neurons that keep more than LIF say so (`extra_maps`).
"""

from __future__ import annotations

import torch
from torch import nn

from ..neurons import Neuron
from ..units import output_shape

MAPS_PER_NEURON = {"paper": 2.0, "lean": 1.0 + 1 / 32}
MAPS_PER_LAYER = 1.0


def footprint(module: nn.Module, in_shape: tuple[int, ...], memory: str = "paper") -> tuple[float, tuple[int, ...]]:
    """Elements a sample that `module` (on the meta device) keeps for its backward, and the shape of its output."""
    kept = 0.0

    def count(layer: nn.Module, _, output: torch.Tensor) -> None:
        nonlocal kept
        maps = MAPS_PER_NEURON[memory] + layer.extra_maps if isinstance(layer, Neuron) else MAPS_PER_LAYER
        kept += maps * output[0].numel()

    counted = [m for m in module.modules() if isinstance(m, Neuron | nn.Conv2d | nn.AvgPool2d)]
    handles = [layer.register_forward_hook(count) for layer in counted]
    shape = output_shape(module, in_shape)
    for handle in handles:
        handle.remove()
    return kept, shape
