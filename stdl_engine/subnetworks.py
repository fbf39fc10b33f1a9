"""How a network is cut: subnetworks, their auxiliary networks, and what each costs against a budget."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, prod

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format

from .auxiliary import VARIANTS, Layer, Search, Shape, Variant, fitted
from .footprint import footprint
from .partition import partition_by, smallest_budget
from .units import Head, copy_of_shapes, label_of, shapes_only


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


@dataclass(frozen=True)
class Part:
    """One planned subnetwork: which units, which auxiliary layers (None for the last, which has the head), and its
    footprint.
    """

    units: range
    auxiliary: tuple[Layer, ...] | None
    footprint: float
    names: tuple[str, ...] = ()
    auxiliary_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The parts of a network in order, with footprints in elements a sample."""

    parts: tuple[Part, ...]
    total: float
    budget: float | None = None
    memory: str = "paper"
    notes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        rows = [("", "subnetwork", "auxiliary network", "footprint", "of budget")]
        for number, part in enumerate(self.parts, 1):
            of_budget = f"{part.footprint / self.budget:.1%}" if self.budget else "-"
            rows.append(
                (
                    str(number),
                    "-".join(part.names),
                    "-".join(part.auxiliary_names) or "-",
                    f"{part.footprint:,.0f}",
                    of_budget,
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = [
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        budget = f", budget {self.budget:,.0f} ({self.budget / self.total:.1%})" if self.budget else ""
        lines.append(f"whole network {self.total:,.0f}{budget}; footprints in elements a sample, {self.memory} memory")
        return "\n".join([*lines, *self.notes])


class Network:
    """A model as the planner sees it: its units with the shape each one gives and its footprint, without running
    anything.
    """

    def __init__(self, model: nn.Sequential, in_shape: Shape, memory: str = "paper") -> None:
        check_model(model)
        self.model, self.in_shape, self.memory = model, tuple(in_shape), memory
        *self.units, self.head = copy_of_shapes(model).eval()
        self.shapes, self.costs, shape = [], [], self.in_shape
        for unit in self.units:
            cost, shape = footprint(unit, shape, memory)
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

    def labels(self, run: range) -> list[str]:
        return [label_of(self.units[index]) for index in run]


def check_model(model: nn.Module) -> None:
    """Reject what is not a sequence of units ending in a head."""
    if not isinstance(model, nn.Sequential) or len(model) < 2:
        raise TypeError(
            f"the model is a {type(model).__name__}: it must be an nn.Sequential of units ending in a Head, "
            "which stdl_engine.convert.units_from makes of many other models."
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


def plan_within(network: Network, budget: float, variant: Variant = VARIANTS["stdl"], layerwise: bool = False) -> Plan:
    """Cut a network under a budget (elements a sample): Algorithm 1 with room for an auxiliary network, then the
    deepest that fit.

    `layerwise` makes every unit a subnetwork, for the ablation of the partition.
    """
    search = Search(network.units, network.shapes, network.memory, variant)
    count = len(network.units)

    @functools.cache
    def needed(run: range) -> float:
        return network.cost(run) + (0.0 if run.stop == count else search.smallest(run.stop - 1))

    if layerwise:
        runs = [range(index, index + 1) for index in range(count)]
    else:
        try:
            runs = partition_by(count, lambda run: needed(run) <= budget)
        except LookupError as stuck:
            (index,) = stuck.args
            raise BudgetError(network, index, budget, smallest_budget(count, needed)) from None
    parts = []
    for run in runs:
        layers = None
        if run.stop < count:
            layers, _ = search.best(run.stop - 1, budget - network.cost(run))
        parts.append(make_part(network, search, run, layers))
    return Plan(tuple(parts), network.total, budget, network.memory)


class BudgetError(ValueError):
    """No partition meets the budget; `least` is the smallest that one does, in elements a sample."""

    def __init__(self, network: Network, index: int, budget: float, least: float) -> None:
        self.least = least
        label = label_of(network.units[index])
        rounded_up = ceil(1e4 * least / network.total) / 1e4
        super().__init__(
            f"unit {index} ({label}) with the smallest auxiliary network needs more than the budget of "
            f"{budget / network.total:.4f} of the network's footprint: the smallest budget that works is "
            f"{rounded_up:.4f}."
        )


def plan_with_linear_heads(network: Network, runs: Sequence[range]) -> Plan:
    """Given runs of units, each but the last learning from a linear classifier of its own."""
    search = Search(network.units, network.shapes, network.memory, VARIANTS["linear"])
    last = len(network.units)
    parts = [make_part(network, search, run, None if run.stop == last else []) for run in runs]
    return Plan(tuple(parts), network.total, None, network.memory)


def plan_of_layers(
    network: Network, rows: Sequence[tuple[range, Sequence[int] | None]], variant: Variant = VARIANTS["stdl"]
) -> Plan:
    """A plan written down by hand: for each run of units the numbers of the units its auxiliary network is made of."""
    search = Search(network.units, network.shapes, network.memory, variant)
    parts = []
    for run, indices in rows:
        layers, shape = None, network.shapes[run.stop - 1]
        if indices is not None:
            layers = []
            for index in indices:
                layers.append(fitted(network.units[index], index, network.shapes[index], shape))
                shape = network.shapes[index]
        parts.append(make_part(network, search, run, layers))
    return Plan(tuple(parts), network.total, None, network.memory)


def make_part(network: Network, search: Search, run: range, layers: Sequence[Layer] | None) -> Part:
    """A run of units with these auxiliary layers, or with the model's head if None, by name and footprint."""
    cost, shape = network.cost(run), network.shapes[run.stop - 1]
    if layers is None:
        return Part(run, None, cost, (*network.labels(run), label_of(network.head)))
    for layer in layers:
        cost += search.cost(layer.index, shape)
        shape = network.shapes[layer.index]
    with shapes_only():
        auxiliary = search.build(run.stop - 1, layers, network.head.num_classes)
    return Part(run, tuple(layers), cost, tuple(network.labels(run)), tuple(label_of(layer) for layer in auxiliary))


def build(network: Network, plan: Plan, variant: Variant = VARIANTS["stdl"]) -> list[Subnetwork]:
    """The subnetworks of a plan. Units are the model's own; auxiliary networks are new, and like the model in device,
    dtype and order of memory.
    """
    model = network.model
    units = list(model)[:-1]
    search = Search(units, network.shapes, network.memory, variant)
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
