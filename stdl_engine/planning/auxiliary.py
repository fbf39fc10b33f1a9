"""Auxiliary networks: from a subnetwork's later layers, the deepest ordered choice that fits the budget, then a
classifier.

A chosen layer keeps its own output channels and its own output resolution. With f = resolution so far / its own, a
residual block takes stride min(f, 2), and an average pool before it takes what is left of f; a conv unit has no stride,
and the pool takes all of f. So the cost of a layer depends only on the layer chosen before it. The choice is a path
through the later layers, found by dynamic programming over (depth, last layer, footprint so far) instead of by
enumerating subsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from ..memory.layers import SpikeAvgPool2d
from ..units import ConvUnit, Head, PooledHead, ResidualBlock, Unit, shapes_only
from .footprint import footprint

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One layer of an auxiliary network: unit number `index` of the model, after an average pool, at this stride."""

    index: int
    pool: int
    stride: int


def fitted(unit: Unit, index: int, own_shape: Shape, in_shape: Shape) -> Layer:
    """How `unit`, whose output in the network is `own_shape`, takes part in an auxiliary network on a map of
    `in_shape`.
    """
    sides = zip(in_shape[1:], own_shape[1:], strict=True) if len(own_shape) > 1 else []
    factor = max(1, min((round(side / own) for side, own in sides), default=1))
    stride = min(factor, unit.max_stride)
    return Layer(index, pool=factor // stride, stride=stride)


def keep_kind(unit: Unit, in_channels: int, stride: int) -> Unit:
    """The layer itself, rebuilt for this input, as the method defines it."""
    return unit.rebuild(in_channels, stride)


def as_conv(kernel: int) -> Callable[[Unit, int, int], Unit]:
    """Residual blocks replaced by one conv unit of the same channels and stride, for the ablation of structure."""

    def build(unit: Unit, in_channels: int, stride: int) -> Unit:
        if not isinstance(unit, ResidualBlock):
            return unit.rebuild(in_channels, stride)
        return ConvUnit(in_channels, unit.out_channels, unit.make_neuron, kernel=kernel, conv_stride=stride)

    return build


@dataclass(frozen=True)
class Variant:
    """How auxiliary networks are made; the default is the paper's method, the others are its ablations."""

    build: Callable[[Unit, int, int], Unit] = keep_kind
    max_depth: int | None = None
    prefer: str = "footprint"
    """Among choices of equal depth: the largest total "footprint", or with "depth" the smallest (depth is all that
    counts).
    """


VARIANTS = {
    "stdl": Variant(),
    "conv3x3": Variant(build=as_conv(3)),
    "conv1x1": Variant(build=as_conv(1)),
    "two_layer": Variant(max_depth=1),
    "linear": Variant(max_depth=0),
    "depth_only": Variant(prefer="depth"),
}


class Search:
    """Finds the auxiliary network of any subnetwork of one model; costs are in the units of `footprint`."""

    def __init__(self, units: Sequence[Unit], shapes: Sequence[Shape], memory: str, variant: Variant) -> None:
        self.units, self.shapes, self.memory, self.variant = units, shapes, memory, variant
        self._kinds = [repr(unit) for unit in units]  # units that are made of the same things cost the same
        self._costs: dict[tuple, float] = {}

    def cost(self, index: int, in_shape: Shape) -> float:
        """Footprint of unit `index` as a layer on a map of `in_shape`, its pool included."""
        layer = fitted(self.units[index], index, self.shapes[index], in_shape)
        key = (self._kinds[index], self.shapes[index], layer.pool, layer.stride, in_shape)
        if key not in self._costs:
            with shapes_only():
                self._costs[key] = footprint(nn.Sequential(*self._modules(layer, in_shape)), in_shape, self.memory)[0]
        return self._costs[key]

    def smallest(self, last: int) -> float:
        """The least footprint an auxiliary network behind unit `last` can have: one layer, or none if the variant
        allows none.
        """
        if self.variant.max_depth == 0:
            return 0.0
        return min((self.cost(index, self.shapes[last]) for index in range(last + 1, len(self.units))), default=0.0)

    def best(self, last: int, budget: float) -> tuple[list[Layer], float]:
        """The layers behind unit `last`: most layers within `budget`, then most (or least) footprint. Returns them
        and their cost.
        """
        choices: dict[int, dict[float, tuple[int, ...]]] = {last: {0.0: ()}}
        depth, deepest = 0, choices
        while choices and depth != self.variant.max_depth:
            choices = self._one_deeper(choices, budget)
            if choices:
                depth, deepest = depth + 1, choices
        totals = [(total, path) for ending in deepest.values() for total, path in ending.items()]
        pick = min if self.variant.prefer == "depth" else max
        total, path = pick(totals)
        layers, shape = [], self.shapes[last]
        for index in path:
            layers.append(fitted(self.units[index], index, self.shapes[index], shape))
            shape = self.shapes[index]
        return layers, total

    def _one_deeper(self, choices: dict, budget: float) -> dict:
        """All (last layer, total) one layer deeper that fit, each with one path; equal totals keep the path of later
        layers.
        """
        deeper: dict[int, dict[float, tuple[int, ...]]] = {}
        for previous, totals in choices.items():
            for index in range(previous + 1, len(self.units)):
                cost = self.cost(index, self.shapes[previous])
                for total, path in totals.items():
                    if total + cost <= budget:
                        ending = deeper.setdefault(index, {})
                        ending[total + cost] = max(ending.get(total + cost, ()), (*path, index))
        return deeper

    def build(self, last: int, layers: Sequence[Layer], num_classes: int) -> nn.Sequential:
        """The auxiliary network as modules, on the default device."""
        shape = self.shapes[last]
        if not layers:
            return nn.Sequential(PooledHead(shape, num_classes))
        modules: list[nn.Module] = []
        for layer in layers:
            modules += self._modules(layer, shape)
            shape = self.shapes[layer.index]
        return nn.Sequential(*modules, Head(shape[0], num_classes))

    def _modules(self, layer: Layer, in_shape: Shape) -> list[nn.Module]:
        pool = [SpikeAvgPool2d(layer.pool)] if layer.pool > 1 else []
        return [*pool, self.variant.build(self.units[layer.index], in_shape[0], layer.stride)]
