"""What a part of a network keeps in memory during a training step, in elements per sample, without running it.

The paper's count ("paper") is three maps per neuron layer (the conv output kept for batch norm, the membrane, the
spikes), one per shortcut conv and one per pool. Every neuron layer follows one conv, so that is one map for each conv
or pool and two for each neuron layer, and a user's own block can be counted by what it is made of. "lean" is the same
network with spikes as bits: 1 + 1/32 maps per neuron layer. Neurons that keep more than LIF say so (`extra_maps`).
"""

from __future__ import annotations

from types import UnionType

from torch import nn

from ..neurons import Neuron
from ..units import output_shape

MAPS_PER_NEURON = {"paper": 2.0, "lean": 1.0 + 1 / 32}
MAPS_PER_LAYER = 1.0


def footprint(module: nn.Module, in_shape: tuple[int, ...], memory: str = "paper") -> tuple[float, tuple[int, ...]]:
    """Elements per sample that `module` (on the meta device) keeps for backward, and the shape of its output."""

    def maps(layer: nn.Module) -> float:
        return MAPS_PER_NEURON[memory] + layer.extra_maps if isinstance(layer, Neuron) else MAPS_PER_LAYER

    sizes, shape = _sizes(module, in_shape, Neuron | nn.Conv2d | nn.AvgPool2d)
    return sum(maps(layer) * size for layer, size in sizes), shape


def state_sizes(module: nn.Module, in_shape: tuple[int, ...]) -> list[int]:
    """Elements per sample of the state of each neuron layer of `module` (on the meta device)."""
    sizes, _ = _sizes(module, in_shape, Neuron)
    return [size * len(neuron.state_names) for neuron, size in sizes if isinstance(neuron, Neuron)]


def _sizes(
    module: nn.Module, in_shape: tuple[int, ...], kinds: type | UnionType
) -> tuple[list[tuple[nn.Module, int]], tuple[int, ...]]:
    """Layers of some kinds with the elements per sample of their outputs, and the shape of the last output."""
    sizes: list[tuple[nn.Module, int]] = []
    counted = [m for m in module.modules() if isinstance(m, kinds)]
    handles = [m.register_forward_hook(lambda m, _, output: sizes.append((m, output[0].numel()))) for m in counted]
    shape = output_shape(module, in_shape)
    for handle in handles:
        handle.remove()
    return sizes, shape
