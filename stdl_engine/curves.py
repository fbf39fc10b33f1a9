"""Loss and accuracy over the epochs, as a picture."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
LOSSES = (("train_loss", "training"), ("test_loss", "test"))
ACCURACIES = (("train_accuracy", "training"), ("validation_accuracy", "validation"), ("test_accuracy", "test"))


def draw(rows: Rows, title: str) -> bytes:
    """A PNG of what was measured each epoch of a run."""
    figure, loss, accuracy = _figure(title)
    epochs = [row["epoch"] for row in rows]
    for axes, names, scale in ((loss, LOSSES, 1), (accuracy, ACCURACIES, 100)):
        for name, label in names:
            if name in rows[-1]:
                axes.plot(epochs, [scale * row[name] for row in rows], marker=".", label=label)
        axes.legend()
    return _png(figure)


def draw_together(runs: Mapping[str, Sequence[Rows]], title: str) -> bytes:
    """A PNG of the training loss and test accuracy of several rules: the mean over the runs of each, with a band of
    their standard deviation."""
    figure, loss, accuracy = _figure(title)
    for rule, own in runs.items():
        for axes, name, scale in ((loss, "train_loss", 1), (accuracy, "test_accuracy", 100)):
            _draw_mean(axes, own, name, scale, rule.upper())
    loss.set(ylabel="training loss")
    accuracy.set(ylabel="test accuracy, %")
    accuracy.legend()
    return _png(figure)


def _draw_mean(axes: Axes, runs: Sequence[Rows], name: str, scale: float, label: str) -> None:
    epochs = [row["epoch"] for row in min(runs, key=len)]
    values = [[scale * run[place][name] for run in runs] for place in range(len(epochs))]
    means = [statistics.fmean(column) for column in values]
    (line,) = axes.plot(epochs, means, marker=".", label=label)
    if len(runs) > 1:
        spread = [statistics.stdev(column) for column in values]
        low, high = ([m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(epochs, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def _figure(title: str) -> tuple[Figure, Axes, Axes]:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    loss, accuracy = figure.subplots(1, 2)
    loss.set(xlabel="epoch", ylabel="loss")
    accuracy.set(xlabel="epoch", ylabel="accuracy, %")
    for axes in (loss, accuracy):
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    return figure, loss, accuracy


def _png(figure: Figure) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()
