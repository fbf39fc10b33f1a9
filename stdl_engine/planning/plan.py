"""How a network is cut: runs of units, the auxiliary network of each, and what each costs against a budget."""

from __future__ import annotations

import functools
import itertools
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from ..units import label_of, shapes_only
from .auxiliary import VARIANTS, Layer, Search, Variant, fitted
from .network import Network
from .partition import partition_by, smallest_budget


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


StageKey = tuple[int, str]
"""A stage by the number of its subnetwork and its name there."""


@dataclass(frozen=True)
class Recompute:
    """Which stages run again in backward instead of keeping what backward needs.

    Attributes:
        levels: how often each stage runs again: once, or through time also twice, which holds the graph of one time
            step at a time.
        default: the level of stages that are not named.
        segment: how many time steps backward through time takes together; None is all of them.
    """

    levels: Mapping[StageKey, int] = field(default_factory=dict)
    default: int = 0
    segment: int | None = None

    def level(self, subnetwork: int, name: str) -> int:
        """The level of one stage. A unit that a hook makes run as a whole takes the level of its pieces."""
        if not self.levels or (subnetwork, name) in self.levels:
            return self.levels.get((subnetwork, name), self.default)
        pieces = (level for (part, own), level in self.levels.items() if part == subnetwork and _is_piece(own, name))
        return max(pieces, default=self.default)

    def unknown(self, stages: Iterable[StageKey]) -> list[StageKey]:
        """Names that are neither a stage nor a piece of one."""
        stages = set(stages)
        return [
            (number, name) for number, name in self.levels
            if (number, name) not in stages and not any(n == number and _is_piece(name, own) for n, own in stages)
        ]  # fmt: skip

    @property
    def any(self) -> bool:
        """Whether there is a stage that runs again."""
        return any(self.levels.values()) if self.levels else self.default > 0

    def __str__(self) -> str:
        if not self.levels:
            times = {0: "", 1: "every piece runs again in backward", 2: "every piece runs again twice in backward"}
            text = times[self.default]
        else:
            text = "run again in backward: " + ", ".join(self.name(*key) for key, level in self.levels.items() if level)
        return f"{text}, {self.segment} time steps together" if text and self.segment else text

    def name(self, subnetwork: int, name: str) -> str:
        """A stage that runs again, for people: "2/1:64R.2", or "2/1:64R.2 twice"."""
        return f"{subnetwork + 1}/{name}" + (" twice" if self.level(subnetwork, name) == 2 else "")


def _is_piece(name: str, unit: str) -> bool:
    return name.startswith(f"{unit}.")


@dataclass(frozen=True)
class Plan:
    """The parts of a network in order, with footprints in elements per sample."""

    parts: tuple[Part, ...]
    total: float
    budget: float | None = None
    memory: str = "paper"
    variant: Variant = VARIANTS["stdl"]
    """How the auxiliary networks are made."""
    recompute: Recompute = Recompute()
    chunk: int = 1
    """How many time steps of a subnetwork run together."""
    notes: tuple[str, ...] = field(default=())
    byte_shares: tuple[float, ...] = ()
    """If the budget is in bytes: the peak while each subnetwork runs, counting everything that is alive."""

    def __str__(self) -> str:
        return self.table()

    def table(self, columns: int | None = None) -> str:
        """The plan for people, one line per subnetwork; names too long for this many columns take several lines."""
        rows: list[tuple[str, ...]] = [("", "subnetwork", "auxiliary network", "footprint", "of budget")]
        for number, part in enumerate(self.parts, 1):
            names = ("-".join(part.names), "-".join(part.auxiliary_names) or "-")
            rows.append((str(number), *names, f"{part.footprint:,.0f}", self._of_budget(number - 1)))
        budget = f", budget {self.budget:,.0f} ({self.budget / self.total:.1%})" if self.budget else ""
        remarks = [f"whole network {self.total:,.0f}{budget}; footprints in elements per sample, {self.memory} memory"]
        together = f"{self.chunk} time steps run together" if self.chunk > 1 else ""
        remarks += [*filter(None, [str(self.recompute), together]), *self.notes]
        if columns is not None:
            rows = _folded(rows, columns)
            remarks = [line for remark in remarks for line in textwrap.wrap(remark, columns)]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = (
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )
        return "\n".join([*lines, *remarks])

    def _of_budget(self, place: int) -> str:
        if self.byte_shares:
            return f"{self.byte_shares[place]:.1%}"
        return f"{self.parts[place].footprint / self.budget:.1%}" if self.budget else "-"

    def recomputing(self, levels: Mapping[StageKey, int] | None = None, segment: int | None = None) -> Plan:
        """The plan with other levels or another segment."""
        changes = {"segment": segment} if levels is None else {"levels": levels, "segment": segment}
        return replace(self, recompute=replace(self.recompute, **changes))


def _folded(rows: list[tuple[str, ...]], columns: int) -> list[tuple[str, ...]]:
    """The rows with the names of units, in columns two and three, broken over as many lines as they need."""
    others = sum(max(len(row[column]) for row in rows) for column in (0, 3, 4)) + 8  # two blanks between columns
    folded: list[tuple[str, ...]] = []
    names = fold_names([(row[1], row[2]) for row in rows], columns - others)
    for (number, _, _, footprint, share), cells in zip(rows, names, strict=True):
        for left, right in itertools.zip_longest(*cells, fillvalue=""):
            folded.append((number, left, right, footprint, share))
            number = footprint = share = ""
    return folded


def fold_names(pairs: Sequence[tuple[str, str]], columns: int) -> list[tuple[list[str], list[str]]]:
    """Names of units joined by hyphens, and those of auxiliary networks, as lines that side by side take no more than
    this many columns."""
    first, second = (max(map(len, names)) for names in zip(*pairs, strict=True))
    first = min(first, max(columns // 2, columns - second))
    return [(_lines(left, first), _lines(right, columns - first)) for left, right in pairs]


def _lines(names: str, width: int) -> list[str]:
    """The names as lines; all but the last end in a hyphen."""
    lines = [""]
    for name in re.findall(r"[^-]+-?|-", names):
        if lines[-1] and len(lines[-1]) + len(name) > width:
            lines.append("")
        lines[-1] += name
    return lines


def plan_within(network: Network, budget: float, variant: Variant = VARIANTS["stdl"], layerwise: bool = False) -> Plan:
    """Cut a network under a budget (elements per sample): Algorithm 1 with room for an auxiliary network, then the
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
    return Plan(tuple(parts), network.total, budget, network.memory, variant)


class BudgetError(ValueError):
    """No partition meets the budget; `least` is the smallest budget that one meets, in elements per sample."""

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
    """A plan of given runs of units, where each run but the last learns from its own linear classifier."""
    search = Search(network.units, network.shapes, network.memory, VARIANTS["linear"])
    last = len(network.units)
    parts = [make_part(network, search, run, None if run.stop == last else []) for run in runs]
    return Plan(tuple(parts), network.total, None, network.memory, VARIANTS["linear"])


def plan_of_layers(
    network: Network, rows: Sequence[tuple[range, Sequence[int] | None]], variant: Variant = VARIANTS["stdl"]
) -> Plan:
    """A plan written by hand: for each run of units the numbers of the units that its auxiliary network is made of."""
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
    return Plan(tuple(parts), network.total, None, network.memory, variant)


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
