"""The outputs of the units of a trained network, for each sample and time step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..neurons import Neuron, borrowed
from ..units import PooledHead, shapes_only


def neuron_layers(unit: nn.Module) -> list[nn.Module]:
    """The neuron layers of a unit; a unit that has none of ours counts as one itself."""
    return [module for module in unit.modules() if isinstance(module, Neuron)] or [unit]


@torch.no_grad()
def watch(model: nn.Sequential, frames: Sequence[Tensor], see: Callable[[int, int, Tensor], None]) -> None:
    """Run the plain network in evaluation mode over T frames; `see` is called with the number of a unit, the time step,
    and the unit's output. The model is left as it was."""
    *units, _ = model
    with borrowed(model.modules(), training=False, online=True, memory="lean"):
        for t, x in enumerate(frames):
            for number, unit in enumerate(units):
                x = unit(x)
                see(number, t, x)


def mean_maps(model: nn.Sequential, frames: Sequence[Tensor]) -> list[Tensor]:
    """The firing rate of every unit: its output averaged over time, [batch, ...]."""
    sums: dict[int, Tensor] = {}

    def see(number: int, t: int, x: Tensor) -> None:
        sums[number] = x.float() + sums[number] if t else x.float().clone()

    watch(model, frames, see)
    return [total / len(frames) for total in sums.values()]


def pooled(maps: Tensor, features: int) -> Tensor:
    """Maps averaged over neighbouring places until at most this many features are left, as in the classifiers of local
    learning: [batch, features]."""
    with shapes_only():
        size = PooledHead(tuple(maps.shape[1:]), 1, features).size
    return nn.functional.adaptive_avg_pool2d(maps, size).flatten(1) if size else maps
