"""Results as pictures, as wide as a page of documentation; every line is distinct and is labelled where it ends."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from .results import Row
from .timing import Spread

WIDTH, DPI = 9.5, 130
"""Inches, at which letters are as large as those of the surrounding page, and dots per inch."""
FONT = 8.5
CHARACTER = 0.54 * FONT / 72
"""The approximate width of a letter, in inches."""
LINE = 1.35 * FONT / 72
"""Inches from one label to the next."""
COLORS = (
    "#1457b3", "#444444", "#1e8449", "#c98a00", "#7d3c98", "#0f9aa7", "#c8201f", "#7a4a21",
    "#e0559d", "#7a8b00", "#0b1f5c", "#9a86e8", "#f06a1d", "#c9a27e", "#8c1b4a", "#87c540",
)  # fmt: skip
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p", "d", "8", "H", "+")
OURS, THEIRS = COLORS[0], "#9aa5b1"


@dataclass(frozen=True)
class Line:
    """One line of a panel: its points and their spread."""

    name: str
    x: Sequence[float]
    y: Sequence[Spread]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The axis labels of all panels."""

    x: str
    y: str
    powers: bool = False
    """Whether the x axis is labelled in powers of two."""


def lines_of(rows: Sequence[Row], x: Callable[[Row], float]) -> list[Line]:
    """One line for each contender."""
    found = []
    for who in dict.fromkeys(row.who for row in rows):
        mine = [row for row in rows if row.who == who]
        found.append(Line(who, [x(row) for row in mine], [row.spread for row in mine]))
    return found


def lines(panels: Mapping[str, Sequence[Line]], labels: Labels, order: Sequence[str]) -> bytes:
    """Lines over a size, both axes logarithmic, one panel for each title.

    A name looks the same in every panel, and in every picture drawn with the same order.
    """
    names = list(dict.fromkeys([*order, *(line.name for drawn in panels.values() for line in drawn)]))
    columns = min(2, len(panels))
    figure, places = _grid(len(panels), columns, left=0.75, right=_room(panels.values()), height=4.4 / columns + 0.2)
    for (title, drawn), panel in zip(panels.items(), places, strict=True):
        for line in drawn:
            look = style(names.index(line.name))
            panel.plot(line.x, [point.p50 for point in line.y], **look, linewidth=1.6, markersize=4.5)
            low, high = [point.p20 for point in line.y], [point.p80 for point in line.y]
            panel.fill_between(line.x, low, high, color=look["color"], alpha=0.12, linewidth=0)
        panel.set_title(title, fontsize=FONT + 1.5, loc="left")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        sizes = sorted({x for line in drawn for x in line.x})
        if len(sizes) == 1:  # its points at the right, where the labels are
            panel.set_xlim(sizes[0] / 4, sizes[0] * 1.1)
        panel.xaxis.set_major_locator(FixedLocator(sizes))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(_power if labels.powers else _plain))
        panel.yaxis.set_major_formatter(FuncFormatter(_plain))
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel(labels.x, fontsize=FONT)
        panel.set_ylabel(labels.y, fontsize=FONT)
    low, high = (pick(panel.get_ylim()[side] for panel in places) for side, pick in ((0, min), (1, max)))
    for drawn, panel in zip(panels.values(), places, strict=True):
        panel.set_ylim(low, high)
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
        _name_at_the_end(panel, drawn, names)
    return png(figure, places)


def style(place: int) -> dict[str, object]:
    """Colour, dashes and marker of a line; no two of the first sixteen share a colour or a marker."""
    return {
        "color": COLORS[place % len(COLORS)],
        "linestyle": DASHES[place % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)],
    }


def _name_at_the_end(panel: Axes, lines: Sequence[Line], names: Sequence[str]) -> None:
    """Labels to the right of the panel, as near to the lines' ends as possible without touching each other."""
    to_panel = panel.transData + panel.transAxes.inverted()
    ends = [to_panel.transform((line.x[-1], line.y[-1].p50)) for line in lines]
    heights = apart([end[1] for end in ends], LINE / (panel.get_position().height * panel.figure.get_figheight()))
    for line, end, height in zip(lines, ends, heights, strict=True):
        look, inch = style(names.index(line.name)), 1 / (panel.get_position().width * WIDTH)
        leader = {"color": look["color"], "transform": panel.transAxes, "clip_on": False}
        panel.plot([end[0], 1 + 0.12 * inch], [end[1], height], linewidth=0.7, **leader)
        panel.plot([1 + 0.12 * inch], [height], marker=look["marker"], markersize=4.5, **leader)
        panel.text(1 + 0.2 * inch, height, line.name, fontsize=FONT, va="center", transform=panel.transAxes)


def apart(wanted: Sequence[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """The places nearest to the wanted ones, by least squares, that are in the same order, at least `gap` apart, and
    between `low` and `high` if there is room."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[list[float]] = []  # labels that touch: the mean place of the lowest one, and how many there are
    for rank, i in enumerate(order):
        blocks.append([wanted[i] - rank * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (above, many), (below, few) = blocks.pop(), blocks.pop()
            blocks.append([(above * many + below * few) / (many + few), many + few])
    last = max(low, high - (len(wanted) - 1) * gap)
    starts = [min(max(start, low), last) for start, many in blocks for _ in range(int(many))]
    places = [0.0] * len(wanted)
    for rank, i in enumerate(order):
        places[i] = starts[rank] + rank * gap
    return places


def bars_of(rows: Sequence[Row]) -> dict[str, Spread]:
    """One bar for each contender."""
    return {row.who: row.spread for row in rows}


def bars(panels: Mapping[tuple[str, str], Mapping[str, Spread]], marked: Collection[str]) -> bytes:
    """One bar for each name with its figure at the end; a panel for each pair of a size (below each other) and a
    quantity (beside each other). The thin line is the 20th to 80th percentile; those of `marked` are grey."""
    sizes, quantities = (list(dict.fromkeys(key[part] for key in panels)) for part in (0, 1))
    names = list(dict.fromkeys(name for bars in panels.values() for name in bars))
    left = CHARACTER * max(map(len, names)) + 0.2
    height = 0.24 * len(names) + 0.2
    figure, places = _grid(len(panels), len(quantities), left=left, right=0.55, height=height, shared_left=True)
    for panel, (size, quantity) in zip(places, itertools.product(sizes, quantities), strict=True):
        found = panels[size, quantity]
        for y, name in enumerate(names):
            if name in found:
                spread, color = found[name], THEIRS if name in marked else OURS
                panel.barh(y, spread.p50, color=color, height=0.7)
                panel.plot([spread.p20, spread.p80], [y, y], color="black", linewidth=1)
                panel.text(max(spread.p50, spread.p80), y, f" {spread.p50:.3g}", fontsize=FONT, va="center")
        first = quantity == quantities[0]
        panel.set_yticks(range(len(names)), names if first else [""] * len(names), fontsize=FONT)
        panel.set_ylim(len(names) - 0.4, -0.6)
        panel.set_title(size if first else "", fontsize=FONT + 1.5, loc="left")
        panel.set_xlabel(quantity, fontsize=FONT)
    return png(figure, places, "x")


def _grid(
    count: int, columns: int, *, left: float, right: float, height: float, shared_left: bool = False
) -> tuple[Figure, list[Axes]]:
    """Panels of a fixed size in inches, with room for labels to the left and right of each; with `shared_left` on the
    left only for the first in a line."""
    rows = -(-count // columns)
    above, below = 0.35, 0.5
    figure = Figure(figsize=(WIDTH, rows * (above + height + below)), facecolor="white")
    FigureCanvasAgg(figure)
    lefts = [left if not shared_left or column == 0 else 0.15 for column in range(columns)]
    width = (WIDTH - sum(lefts) - columns * right) / columns
    panels = []
    for place in range(count):
        row, column = divmod(place, columns)
        x = sum(lefts[: column + 1]) + column * (width + right)
        y = (rows - row - 1) * (above + height + below) + below
        box = (x / WIDTH, y / figure.get_figheight(), width / WIDTH, height / figure.get_figheight())
        panels.append(figure.add_axes(box))
    return figure, panels


def _room(panels: Collection[Sequence[Line]]) -> float:
    return CHARACTER * max(len(line.name) for drawn in panels for line in drawn) + 0.25


def _plain(value: float, _: object = None) -> str:
    return f"{value:g}"


def _power(value: float, _: object = None) -> str:
    return f"$2^{{{math.log2(value):.0f}}}$"


def png(figure: Figure, panels: Sequence[Axes], grid: str = "both") -> bytes:
    """The finished picture, with what all panels have in common."""
    for panel in panels:
        panel.grid(axis=grid, color="#d8dde2", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=FONT, length=2)
        panel.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    return picture.getvalue()
