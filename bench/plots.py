"""Results as pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .results import Row


def kernels(rows: Sequence[Row]) -> bytes:
    """Neurons per second over the size, one panel a setting, forward and backward; float32."""
    rows = [row for row in rows if row.spread is not None and row.dtype == "float32" and "backward" in row.what]
    settings = list(dict.fromkeys(row.what.partition(", ")[2] for row in rows))
    colors = {who: f"C{place}" for place, who in enumerate(dict.fromkeys(row.who for row in rows))}  # in every panel
    figure, panels = _panels(settings)
    for panel, setting in zip(panels, settings, strict=True):
        mine = [row for row in rows if row.what.endswith(setting)]
        for who in dict.fromkeys(row.who for row in mine):
            points = [(_neurons(row.shape), row.spread) for row in mine if row.who == who]
            sizes = [size for size, _ in points]
            middle = [spread.p50 for _, spread in points]
            panel.plot(sizes, middle, marker=".", label=who, color=colors[who])
            low, high = [spread.p20 for _, spread in points], [spread.p80 for _, spread in points]
            panel.fill_between(sizes, low, high, color=colors[who], alpha=0.2)
        panel.set(title=setting, xlabel="neurons", ylabel="M neurons/s", xscale="log", yscale="log")
    return _png(figure, panels)


def memory_over_time(rows: Sequence[Row]) -> bytes:
    """Peak memory over the number of time steps, one line for each who."""
    figure, (panel,) = _panels([""])
    figure.set_size_inches(9, 4.2)
    for who in dict.fromkeys(row.who for row in rows):
        mine = [row for row in rows if row.who == who and row.spread is not None]
        panel.plot([int(row.shape.rpartition("T=")[2]) for row in mine], [r.spread.p50 for r in mine], "o-", label=who)
    panel.set(xlabel="time steps", ylabel="peak memory, GB", yscale="log")
    panel.set_xscale("log", base=2)
    panel.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return _png(figure, [panel], legend=False)


def bars(rows: Sequence[Row], label: str) -> bytes:
    """One bar for each who, a panel for each shape; the line is the 20th to 80th percentile."""
    rows = [row for row in rows if row.spread is not None]
    shapes = list(dict.fromkeys(row.shape for row in rows))
    figure, panels = _panels(shapes)
    for panel, shape in zip(panels, shapes, strict=True):
        mine = [row for row in rows if row.shape == shape][::-1]
        middle = [row.spread.p50 for row in mine]
        errors = [[row.spread.p50 - row.spread.p20 for row in mine], [row.spread.p80 - row.spread.p50 for row in mine]]
        panel.barh([row.who for row in mine], middle, xerr=errors, color="tab:blue", alpha=0.7)
        panel.set(title=shape, xlabel=label)
    return _png(figure, panels, legend=False)


def _panels(titles: Sequence[str]) -> tuple[Figure, list[Axes]]:
    columns = min(3, max(1, len(titles)))
    lines = max(1, -(-len(titles) // columns))
    figure = Figure(figsize=(5.2 * columns, 3.8 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for unused in panels[len(titles) :]:
        unused.set_visible(False)
    return figure, panels[: len(titles)]


def _png(figure: Figure, panels: Sequence[Axes], legend: bool = True) -> bytes:
    for panel in panels:
        panel.grid(alpha=0.3)
    if legend and panels:
        panels[0].legend(fontsize="small")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()


def _neurons(shape: str) -> int:
    """The size of "4×2^20": neurons, without the steps."""
    return 2 ** int(shape.rpartition("^")[2])
