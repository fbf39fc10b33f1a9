"""Loss and accuracy over the epochs, as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def draw(rows: Sequence[dict[str, Any]], title: str) -> bytes:
    """A PNG of what was measured each epoch."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    epochs = [row["epoch"] for row in rows]
    loss, accuracy = figure.subplots(1, 2)
    loss.plot(epochs, [row["train_loss"] for row in rows], marker=".", label="training")
    loss.set(xlabel="epoch", ylabel="loss")
    for name, label in (("train_accuracy", "training"), ("test_accuracy", "test")):
        accuracy.plot(epochs, [100 * row[name] for row in rows], marker=".", label=label)
    accuracy.set(xlabel="epoch", ylabel="accuracy, %")
    accuracy.legend()
    for axes in (loss, accuracy):
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()
