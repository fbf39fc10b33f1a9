"""The trade-off of a recipe: the bytes and the work of each rule, as a table of values and as a picture."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from .building import optimizer_factory, predict_peak, sample_batch, shapes_of, unbounded_options
from .planning.budgets import format_bytes
from .planning.planner import Prediction
from .planning.tradeoff import by_cutting, by_recomputing
from .recipes import Recipe, by_rule
from .rules import RULES, STDL

NETWORK = ("model", "width", "in_shape", "num_classes", "events", "neuron", "optimizer", "precision")
"""What a point is of, beside its batch and its time steps."""
SAME = ("batch_size", "steps", *NETWORK)
COLUMNS = ("rule", "memory", "batch_size", "steps", "peak_bytes", "cost", "subnetworks", "recompute", *NETWORK)
MARKERS = "osD^vPX*"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One way to train, with what it takes in bytes and in work."""

    rule: str
    """The series that it belongs to in a picture."""
    memory: str
    """In which form, or at which setting."""
    batch_size: int
    steps: int
    peak_bytes: int
    cost: float
    """In multiply-adds, relative to BPTT that recomputes nothing."""
    subnetworks: int
    recompute: tuple[str, ...]
    """What runs again."""

    @classmethod
    def of(cls, p: Prediction) -> Point:
        """A training step that was planned, its work included."""
        assert p.cost is not None
        return cls(
            rule=p.rule, memory=p.memory, batch_size=p.batch_size, steps=p.steps, peak_bytes=p.peak_bytes, cost=p.cost,
            subnetworks=len(p.subnetworks), recompute=tuple(p.recompute),
        )  # fmt: skip


def trade_off(recipe: Recipe, rule: str) -> Iterator[Prediction]:
    """Training steps of the recipe with one rule, from the most memory that helps to the least that suffices."""
    recipe = by_rule(recipe, rule)
    options = unbounded_options(recipe)
    given = shapes_of(recipe), optimizer_factory(recipe), sample_batch(recipe, torch.device("meta")), recipe.steps
    if rule == "stdl":
        whole = predict_peak(by_rule(recipe, "sltt"))  # STDL with a single subnetwork
        yield from by_cutting(STDL, *given, most=whole.peak_bytes, **options)
    else:
        yield from by_recomputing(RULES[rule], *given, **options)


def conditions(recipe: Recipe) -> dict[str, str]:
    """What the points of a recipe are of, by column; points that differ in any of it are of something else."""
    values = {name: getattr(recipe, name) for name in SAME}
    values |= {"width": f"{recipe.width:g}", "in_shape": "x".join(map(str, recipe.in_shape))}
    return {name: str(value) for name, value in values.items()}


def as_csv(points: Sequence[Point], recipe: Recipe) -> str:
    """One line for each point, with what it is of."""
    page = io.StringIO()
    writer = csv.DictWriter(page, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for point in points:
        figures = {"cost": f"{point.cost:.4f}", "recompute": " ".join(point.recompute)}
        writer.writerow(vars(point) | figures | conditions(recipe))
    return page.getvalue()


def read_points(path: Path, recipe: Recipe) -> tuple[list[Point], int]:
    """The points of a file that are of the recipe's network, batch and time steps, and how many are of others. A file
    that has none of them, or is no such file, is an error."""
    own, found, strangers = conditions(recipe), [], []
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            columns, lines = reader.fieldnames or (), list(reader)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no file of points ({error}): pass one that --curve has written.") from error
    absent = [name for name in COLUMNS if name not in columns]
    if absent:
        raise ValueError(f"{path} has no column {absent[0]}: pass a file of points that --curve has written.")
    for number, line in enumerate(lines, start=2):
        if any(line[name] != value for name, value in own.items()):
            strangers.append(line)
            continue
        try:
            found.append(_point(line))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is broken at row {number} ({error}): write it again, or delete the row."
            ) from error
    if not found:
        others = "; ".join(dict.fromkeys(_difference(line, own) for line in strangers)) or "none at all"
        raise ValueError(
            f"{path} has no point of this network, batch and time steps, so none can be shown beside them: it has "
            f"points with {others}."
        )
    return found, len(strangers)


def _point(line: Mapping[str, str]) -> Point:
    numbers = {name: int(line[name]) for name in ("batch_size", "steps", "peak_bytes", "subnetworks")}
    cost, again = float(line["cost"]), tuple(line["recompute"].split())
    if numbers["peak_bytes"] <= 0 or not 0 < cost < float("inf"):
        raise ValueError("peak_bytes and cost must be larger than 0")
    return Point(rule=line["rule"], memory=line["memory"], cost=cost, recompute=again, **numbers)


def _difference(line: Mapping[str, str], own: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {line[name]} (here {value})" for name, value in own.items() if line[name] != value)


def choice_table(
    others: Sequence[Prediction], chosen: Prediction | None = None, binary: bool = False, beside: Sequence[Point] = ()
) -> Table:
    """Ways to train side by side, the chosen one marked: how many pieces run again, the peak, and the work."""
    predictions = [*others, chosen] if chosen is not None else list(others)
    rows = [(Point.of(p), " (chosen)" if p is chosen else "") for p in predictions]
    rows += [(point, f", {point.memory}") for point in beside]
    table = Table(title=f"batch {rows[0][0].batch_size}, T={rows[0][0].steps}", title_justify="left")
    for column in ("rule", "subnetworks", "pieces run again", "peak", "work, BPTT = 1"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for point, mark in sorted(rows, key=lambda row: -row[0].peak_bytes):
        twice = sum(name.endswith(" twice") for name in point.recompute)
        again = f"{len(point.recompute)} ({twice} twice)" if twice else str(len(point.recompute))
        peak = format_bytes(point.peak_bytes, binary)
        table.add_row(point.rule + mark, str(point.subnetworks), again, peak, f"{point.cost:.2f}")
    return table


def draw(points: Sequence[Point], title: str, beside: Sequence[Point] = ()) -> bytes:
    """A PNG: bytes against work, a line for each rule, labelled where it ends; points of others alone, each with its
    setting."""
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    markers = itertools.cycle(MARKERS)
    for rule, own in _by_rule(points).items():
        places = sorted((p.peak_bytes / 1e9, p.cost) for p in own)
        axes.plot(*zip(*places, strict=True), marker=next(markers), markersize=5, label=rule)
        axes.annotate(rule, places[0], textcoords="offset points", xytext=(-4, 6), ha="right")
    for rule, own in _by_rule(beside).items():
        places = [(p.peak_bytes / 1e9, p.cost) for p in own]
        axes.plot(*zip(*places, strict=True), marker=next(markers), markersize=7, linestyle="none", label=rule)
        settings: dict[tuple[float, float], list[str]] = {}
        for place, point in zip(places, own, strict=True):
            settings.setdefault(place, []).append(point.memory)
        for place, here in settings.items():
            axes.annotate("\n".join(here), place, textcoords="offset points", xytext=(6, 4), fontsize="small")
    axes.set(xscale="log", xlabel="peak of a training step, GB", ylabel="multiply-adds relative to plain BPTT")
    axes.set_title(title, loc="left")
    axes.margins(x=0.12)  # room for the labels
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    page = io.BytesIO()
    figure.savefig(page, format="png", dpi=150)
    return page.getvalue()


def _by_rule(points: Sequence[Point]) -> dict[str, list[Point]]:
    series: dict[str, list[Point]] = {}
    for point in points:
        series.setdefault(point.rule, []).append(point)
    return series
