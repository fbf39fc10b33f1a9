"""A model as the planner sees it: its units, the output shape and the footprint of each, without running it."""

from __future__ import annotations

import copy
from math import ceil, prod
from typing import Any

from torch import nn

from ..units import Head, Unit, copy_of_shapes, label_of
from .auxiliary import Shape
from .footprint import footprint, state_sizes


class Network:
    """A model as the planner sees it: its units, and the output shape and footprint of each, on the meta device."""

    units: list[Unit]
    head: Head

    def __init__(self, model: nn.Sequential, in_shape: Shape, memory: str = "paper") -> None:
        check_model(model)
        self.model, self.in_shape, self.memory = model, tuple(in_shape), memory
        parts: Any = copy_of_shapes(model).eval()
        *self.units, self.head = parts
        self.shapes, self.costs, shape = [], [], self.in_shape
        for place, unit in enumerate(self.units):
            try:
                cost, shape = footprint(unit, shape, memory)
            except RuntimeError as error:  # what PyTorch says about a map that a layer cannot take
                size, reason = " × ".join(map(str, shape)), str(error).splitlines()[0]
                raise ValueError(
                    f"unit {place} of the network ({label_of(unit)}) cannot take a map of {size} ({reason}): use "
                    "larger samples, or a network that shrinks them less."
                ) from error
            self.shapes.append(shape)
            self.costs.append(cost)

    @classmethod
    def sharing(cls, other: Network, model: nn.Sequential) -> Network:
        """The same measurements for another copy of the same model."""
        network = copy.copy(other)
        network.model = model
        return network

    @property
    def total(self) -> float:
        """Footprint of the whole network, its input included."""
        return sum(self.costs) + prod(self.in_shape)

    def cost(self, run: range) -> float:
        """Footprint of a run of units and of the map it takes in."""
        return sum(self.costs[index] for index in run) + prod(
            self.shapes[run.start - 1] if run.start else self.in_shape
        )

    def segment_for(self, T: int) -> int:
        """How many of T time steps backward through time should take together where pieces run again.

        A time step takes about four maps of the largest layer. Before every segment but the first the states of all
        layers are kept, and their gradients are passed from one segment to another.
        """
        shapes = [self.in_shape, *self.shapes]
        states = [size for unit, shape in zip(self.units, shapes, strict=False) for size in state_sizes(unit, shape)]

        def peak(segment: int) -> int:
            segments = ceil(T / segment)
            return 4 * segment * max(states, default=0) + (sum(states) * segments if segments > 1 else 0)

        return min(range(T, 0, -1), key=peak)

    def labels(self, run: range) -> list[str]:
        return [label_of(self.units[index]) for index in run]


def check_model(model: nn.Module) -> None:
    """Reject what is not a sequence of units ending in a head."""
    if not isinstance(model, nn.Sequential) or len(model) < 2:
        raise TypeError(
            f"the model is a {type(model).__name__}: it must be an nn.Sequential of units ending in a Head, "
            "which stdl_engine.convert.units_from makes from many other models."
        )
    if not isinstance(model[-1], Head):
        raise TypeError(
            f"the model ends in a {type(model[-1]).__name__}: its last part must be a Head, the classifier."
        )
    for place, unit in enumerate(model[:-1]):
        missing = [
            name
            for name in ("in_channels", "out_channels", "stride", "max_stride", "rebuild")
            if not hasattr(unit, name)
        ]
        if missing:
            raise TypeError(
                f"part {place} of the model ({type(unit).__name__}) is no Unit: it lacks {', '.join(missing)}."
            )
