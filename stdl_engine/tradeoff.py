"""The trade-off of a recipe: the bytes and the work of each rule, as a table of values and as a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

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

COLUMNS = ("rule", "memory", "batch_size", "steps", "peak_bytes", "cost", "subnetworks", "recompute")
MARKERS = "osD^vPX*"


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


def as_csv(predictions: Sequence[Prediction]) -> str:
    """One line for each training step; cost is in multiply-adds relative to BPTT that recomputes nothing."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(COLUMNS)
    for p in predictions:
        names = " ".join(p.recompute)
        writer.writerow(
            [p.rule, p.memory, p.batch_size, p.steps, p.peak_bytes, f"{p.cost:.4f}", len(p.subnetworks), names]
        )
    return page.getvalue()


def choice_table(others: Sequence[Prediction], chosen: Prediction | None = None, binary: bool = False) -> Table:
    """Ways to train side by side, the chosen one marked: how many pieces run again, the peak, and the work."""
    predictions = [*others, chosen] if chosen is not None else list(others)
    table = Table(title=f"batch {predictions[0].batch_size}, T={predictions[0].steps}", title_justify="left")
    for column in ("rule", "subnetworks", "pieces run again", "peak", "work, BPTT = 1"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for p in sorted(predictions, key=lambda p: -p.peak_bytes):
        mark = " (chosen)" if p is chosen else ""
        twice = sum(name.endswith(" twice") for name in p.recompute)
        again = f"{len(p.recompute)} ({twice} twice)" if twice else str(len(p.recompute))
        peak = format_bytes(p.peak_bytes, binary)
        table.add_row(p.rule + mark, str(len(p.subnetworks)), again, peak, f"{p.cost:.2f}")
    return table


def draw(predictions: Sequence[Prediction], title: str) -> bytes:
    """A PNG: bytes against work, a line for each rule, labelled where it ends."""
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for marker, rule in zip(MARKERS, dict.fromkeys(p.rule for p in predictions), strict=False):
        points = sorted((p.peak_bytes / 1e9, p.cost) for p in predictions if p.rule == rule)
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=5, label=rule)
        axes.annotate(rule, points[0], textcoords="offset points", xytext=(-4, 6), ha="right")
    axes.set(xscale="log", xlabel="peak of a training step, GB", ylabel="multiply-adds relative to plain BPTT")
    axes.set_title(title, loc="left")
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    page = io.BytesIO()
    figure.savefig(page, format="png", dpi=150)
    return page.getvalue()
