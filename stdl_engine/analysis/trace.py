"""Memory over a training step: every storage while it is alive, by time step, subnetwork, unit, phase and kind.

The real step of the real rule runs on fake tensors, so any size will do. A visit is the time that the step spends at
one place (a time step, a unit, a phase); of each visit the moment with the most bytes alive is drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..building import optimizer_factory, rule_options, sample_batch, shapes_of
from ..memory.tracker import Place
from ..planning.budgets import format_bytes
from ..planning.plan import Plan
from ..planning.planner import PARTS
from ..planning.recording import Recording, record
from ..recipes import RECIPES, Recipe, by_rule
from ..rules import RULES
from ..units import label_of
from . import charts
from .exhibits import Exhibit, Section
from .runs_of_report import Trained
from .snapshot import as_file
from .study import Study

TRACED = ("bptt", "sltt", "stdl")
PAPERS = "cifar10"
"""The recipe of the paper's own figure."""
PHASES = ("forward", "backward", "recompute")


@dataclass(frozen=True)
class Visit:
    """A visit to one place of the step, at its moment of most bytes; one number for each of `PARTS`."""

    place: Place
    parts: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.parts)


def recorded(recipe: Recipe) -> Recording:
    """A training step of the recipe, on fake tensors."""
    given = RULES[recipe.rule], shapes_of(recipe), optimizer_factory(recipe), sample_batch(recipe, torch.device("meta"))
    return record(*given, recipe.steps, **rule_options(recipe))


def visits(recording: Recording) -> list[Visit]:
    """The visits of a step in order."""
    found = []
    births = [(moment.place, moment.parts) for moment in recording.moments if moment.parts is not None]
    for place, stay in itertools.groupby(births, key=lambda birth: birth[0]):
        found.append(Visit(place, max((parts for _, parts in stay), key=sum)))
    return found


def by_unit(recording: Recording, steps: int) -> list[tuple[int, int, int]]:
    """The most bytes alive at each time step while each unit ran, forward or backward; an auxiliary network counts
    towards the last unit before it."""
    most: dict[tuple[int, int], int] = {}
    for moment in recording.moments:
        step, unit = moment.place.step, unit_at(moment.place, recording.plan)
        if step is not None and unit is not None and moment.parts is not None and moment.place.phase in PHASES:
            key = (step, unit)
            most[key] = max(most.get(key, 0), sum(moment.parts))
    last = recording.plan.parts[-1].units.stop
    chunks = -(-steps // recording.plan.chunk)
    return [(t, unit, most.get((t, unit), 0)) for t in range(chunks) for unit in range(last)]


def unit_at(place: Place, plan: Plan) -> int | None:
    """The number in the network of the unit that a place is in: places name units "2:128R.1", by subnetwork."""
    if place.unit is None or place.subnetwork is None:
        return None
    units = plan.parts[place.subnetwork].units
    return min(units.start + int(place.unit.partition(":")[0]), units.stop - 1)


def needs(study: Study) -> list[Trained]:
    return []


def analyse(study: Study) -> Section:
    exhibits = trace_of(study, study.recipe, "", study.unit_names(), snapshots=True)
    papers = RECIPES[PAPERS]
    if study.recipe.name != PAPERS:
        exhibits += trace_of(study, papers, "_paper", _unit_names(papers), snapshots=False)
    text = (
        "BPTT keeps every layer of every time step until its backward pass. SLTT frees each time step, STDL "
        "each subnetwork too. Nothing is modelled: this is the schedule that training runs."
    )
    return Section("Memory over a training step", text, exhibits)


def _unit_names(recipe: Recipe) -> list[str]:
    *units, _ = shapes_of(recipe)
    return [f"{number} {label_of(unit)}" for number, unit in enumerate(units, 1)]


def trace_of(study: Study, recipe: Recipe, suffix: str, names: Sequence[str], *, snapshots: bool) -> list[Exhibit]:
    """The figures of one recipe's step."""
    rows, panels, shown, lines, unit_rows, files = [], [], [], {}, [], {}
    for rule, memory in itertools.product(TRACED, ("paper", "lean")):
        study.printer.say(f"  {recipe.name} by {rule}, {'plain' if memory == 'paper' else 'lean'} memory")
        recording = recorded(replace(by_rule(recipe, rule, memory), chunk=1))  # so that there are time steps to see
        stays, label = visits(recording), f"{rule.upper()}, {'plain' if memory == 'paper' else 'lean'}"
        rows += [(rule, memory, n, *_where(stay.place), *stay.parts, stay.total) for n, stay in enumerate(stays)]
        scale, unit = _unit_of(max(stay.total for stay in stays))
        layers = [(part, [stay.parts[n] / scale for stay in stays]) for n, part in enumerate(PARTS)]
        along, across = "places of the step in order", f"{unit} alive"
        panels.append(charts.areas(label, along, across, range(len(stays)), layers, ticks=_ticks(stays)))
        peak = max(stays, key=lambda stay: stay.total)
        shown.append((label, format_bytes(peak.total), *(format_bytes(part) for part in peak.parts), _said(peak.place)))
        found = by_unit(recording, recipe.steps)
        unit_rows += [(rule, memory, t + 1, names[u], size) for t, u, size in found]
        lines[label] = [size for _, _, size in found]
        if snapshots:
            files[f"trace_{rule}_{memory}.pickle"] = as_file(recording)
    ran = (
        f"{recipe.model} at width {recipe.width:g}, {recipe.in_shape[1]} × {recipe.in_shape[2]} samples, batch "
        f"{recipe.batch_size}, T={recipe.steps}, {recipe.neuron.upper()}, on fake tensors."
    )
    viewer = " The .pickle files are for PyTorch's memory viewer." if snapshots else ""
    scale, unit = _unit_of(max(max(line) for line in lines.values()))
    places = [f"t{t + 1}" if u == 0 else "" for t in range(recipe.steps) for u in range(len(names))]
    plain = [charts.Series(label, [size / scale for size in line]) for label, line in lines.items() if "plain" in label]
    lean = [charts.Series(label, [size / scale for size in line]) for label, line in lines.items() if "lean" in label]
    title = "as in the paper" if suffix else "of this network"
    return [
        Exhibit(
            f"trace_by_unit{suffix}", f"Memory by unit and time step, {title}",
            f"The most bytes alive while each unit ran, forward or backward, unit after unit and time step after time "
            f"step (t1, t2, … are where the first unit is). {ran}",
            ("rule", "memory", "time_step", "unit", "bytes"), unit_rows,
            [charts.lines(f"{form} memory: {recipe.model}, batch {recipe.batch_size}",
                          "unit by unit, time step by time step", f"{unit} alive", range(len(places)), series,
                          marks=False, words=places)
             for form, series in (("Plain", plain), ("Lean", lean))],
        ),
        Exhibit(
            f"trace{suffix}", f"Memory over the step by kind, {title}",
            f"All bytes alive along the step; lines mark time steps (t) or, where a subnetwork runs all its time steps "
            f"before the next one, subnetworks (s). {ran}{viewer}",
            ("rule", "memory", "place", "time_step", "subnetwork", "unit", "phase", *PARTS, "total"), rows, panels,
            table=(("rule", "peak", *PARTS, "reached in"), shown), files=files,
        ),
    ]  # fmt: skip


def _where(place: Place) -> tuple[object, ...]:
    number = None if place.subnetwork is None else place.subnetwork + 1
    return None if place.step is None else place.step + 1, number, place.unit, place.phase


def _said(place: Place) -> str:
    return ", ".join(str(word) for word in (place.phase, place.unit) if word)


def _ticks(stays: Sequence[Visit]) -> list[tuple[float, str]]:
    """Where a time step begins or, with several subnetworks one after the other, a subnetwork."""
    parts = [stay.place.subnetwork for stay in stays if stay.place.phase == "forward"]
    turns = sum(a != b for a, b in itertools.pairwise(parts))
    by_part = 0 < turns < len(set(parts))
    ticks, seen = [], set()
    for n, stay in enumerate(stays):
        number = stay.place.subnetwork if by_part else stay.place.step
        if number is not None and number not in seen and stay.place.phase == "forward":
            seen.add(number)
            ticks.append((float(n), f"{'s' if by_part else 't'}{number + 1}"))
    return ticks


def _unit_of(size: int) -> tuple[float, str]:
    return (1e9, "GB") if size >= 1e9 else (1e6, "MB")
