"""Small charts as SVG: lines, bars, areas and heat maps, small enough for one page and readable in dark mode.

Colours are classes (`s0` to `s7`), which the page defines for light and dark mode; a picture in its own file defines
them itself (`standalone`). Nothing is drawn for a value that is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 400, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 30, 44
MARKERS = {
    "circle": "",
    "square": "m-3,-3h6v6h-6z",
    "triangle": "m0,-4.5l4,7.5h-8z",
    "diamond": "m0,-4.5l4.5,4.5l-4.5,4.5l-4.5,-4.5z",
}
"""Shapes of marks, each as a path around its centre."""
COLOURS = 8

STYLE = """
svg.chart{font:12px system-ui,sans-serif;--ink:#1d2129;--faint:#d9dce2;--quiet:#5b6270;
--c0:#1f6fb4;--c1:#d1495b;--c2:#2a8a57;--c3:#a8620f;--c4:#7b4fb0;--c5:#0f8b8d;--c6:#6b6f76;--c7:#b5338a}
@media(prefers-color-scheme:dark){svg.chart{--ink:#e6e8ec;--faint:#3a3f49;--quiet:#a6adba;
--c0:#6cb2ee;--c1:#f2848f;--c2:#6fcf97;--c3:#e8a94f;--c4:#bd9bea;--c5:#5ed0d2;--c6:#aab0ba;--c7:#ee8ccd}}
svg.chart text{fill:var(--ink)}svg.chart .quiet{fill:var(--quiet)}svg.chart .title{font-weight:600}
svg.chart .grid{stroke:var(--faint);stroke-width:1}svg.chart .axis{stroke:var(--quiet);stroke-width:1}
svg.chart .line{fill:none;stroke:var(--own);stroke-width:2;stroke-linejoin:round}svg.chart .dashed{stroke-dasharray:6 4}
svg.chart .whisker{stroke:var(--own);stroke-width:1.5}svg.chart .mark,svg.chart .area{fill:var(--own)}
""" + "".join(f"svg.chart .s{n}{{--own:var(--c{n})}}" for n in range(COLOURS))


@dataclass(frozen=True)
class Series:
    """One line of a chart: a value for each place on the x axis, with its deviation."""

    label: str
    values: Sequence[float | None]
    deviations: Sequence[float | None] = ()
    dashed: bool = False


def lines(
    title: str, x_label: str, y_label: str, places: Sequence[str | float], series: Sequence[Series], *,
    top: float | None = None, bottom: float | None = 0.0, marks: bool = True, words: Sequence[str] = (),
) -> str:  # fmt: skip
    """A chart of lines over places, which are evenly spaced if they are words. `top` and `bottom` are the ends of the y
    axis, unless values go beyond them. `words` that are not empty are written along the x axis instead of numbers."""
    beside = 0.0
    if not places or isinstance(places[0], str):
        words, beside = [str(place) for place in places], 0.3  # room for the first and the last word
    xs = [float(n if words else place) for n, place in enumerate(places)]
    legend, above = _legend([(one.label, n) for n, one in enumerate(series)])
    ends = [v + sign * (d or 0) for one in series for v, d in _pairs(one) if v is not None for sign in (-1, 1)]
    frame = Frame((min(xs, default=0) - beside, max(xs, default=1) + beside), _limits(ends, bottom, top), TOP + above)
    along = frame.words(xs, words) if words else frame.numbers(_ticks(*frame.x_range))
    parts = [frame.axes(x_label, y_label), legend, *along]
    for n, one in enumerate(series):
        parts.append(_line(frame, n, xs, one))
        if marks:
            parts += _marks(frame, n, xs, one, places)
    return _svg(title, frame.height, parts)


def areas(
    title: str, x_label: str, y_label: str, xs: Sequence[float], layers: Sequence[tuple[str, Sequence[float]]], *,
    ticks: Sequence[tuple[float, str]] = (),
) -> str:  # fmt: skip
    """Stacked areas; the upper edge is their sum."""
    legend, above = _legend([(name, n) for n, (name, _) in enumerate(layers)])
    total = [sum(values) for values in zip(*(layer for _, layer in layers), strict=True)]
    frame = Frame((min(xs), max(xs)), _limits(total, 0.0, None), TOP + above)
    parts = [frame.axes(x_label, y_label), legend]
    lower = [0.0] * len(xs)
    for n, (name, layer) in enumerate(layers):
        upper = [low + value for low, value in zip(lower, layer, strict=True)]
        forth = [frame.point(x, y) for x, y in zip(xs, upper, strict=True)]
        back = [frame.point(x, y) for x, y in zip(reversed(xs), reversed(lower), strict=True)]
        parts.append(f'<path class="area s{n % COLOURS}" d="M{"L".join(forth + back)}Z">{_tip(name)}</path>')
        lower = upper
    for x, word in ticks:
        at = frame.x(x)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{frame.top}" y2="{frame.bottom}"/>')
        parts.append(_text(at + 3, frame.bottom + 14, word))
    return _svg(title, frame.height, parts)


def bars(title: str, y_label: str, x_label: str, rows: Sequence[tuple[str, float | None, float | None]]) -> str:
    """Horizontal bars: a label, a value, and its deviation."""
    height, left = 22, min(190, 12 + max(map(_wide, (y_label, *(label for label, *_ in rows)))))
    known = [value + (deviation or 0) for _, value, deviation in rows if value is not None]
    bottom = TOP + 16 + height * len(rows)
    frame = Frame((0, max(known, default=1) * 1.12 or 1), (0, 1), TOP + 16, left=left, bottom=bottom, right=40)
    parts = [*frame.numbers(_ticks(*frame.x_range), grid=True), frame.x_title(x_label)]
    parts.append(_text(left - 6, TOP + 8, y_label, at="end", kind="y-label quiet"))
    for n, (label, value, deviation) in enumerate(rows):
        y = TOP + 16 + n * height
        parts.append(_text(left - 6, y + 15, label, at="end", kind="name"))
        if value is None:
            parts.append(_text(left + 4, y + 15, "undefined"))
            continue
        end = frame.x(value)
        parts.append(
            f'<rect class="area s0" x="{left}" y="{y + 3}" width="{max(0.0, end - left):.1f}" height="{height - 6}"/>'
        )
        reach = frame.x(value + (deviation or 0))
        if deviation:
            low = frame.x(max(0.0, value - deviation))
            parts.append(f'<path class="axis" d="M{low:.1f},{y + 11}H{reach:.1f}"/>')
        parts.append(_text(reach + 5, y + 15, _number(value)))
    return _svg(title, frame.height, parts)


def grid(
    title: str, x_label: str, y_label: str, columns: Sequence[str], rows: Sequence[str],
    values: Sequence[Sequence[float | None]],
) -> str:  # fmt: skip
    """A heat map of values from 0 to 1, darker for larger ones; each cell shows its value when pointed at."""
    left = min(150, 26 + max(map(_wide, rows)))
    size = min(46.0, (WIDTH - left - RIGHT) / len(columns))
    bottom = TOP + size * len(rows)
    parts = []
    for r, row in enumerate(rows):
        y = TOP + r * size
        parts.append(_text(left - 6, y + size / 2 + 4, row, at="end", kind="name"))
        for c, column in enumerate(columns):
            value = values[r][c]
            tip = _tip(f"{row}, {column}: {'undefined' if value is None else f'{value:.3f}'}")
            x, shade = left + c * size, 0 if value is None else min(1.0, max(0.0, value))
            box = f'x="{x:.1f}" y="{y:.1f}" width="{size - 1:.1f}" height="{size - 1:.1f}"'
            parts.append(f'<rect class="area s0" {box} fill-opacity="{shade:.3f}">{tip}</rect>')
            if size >= 26:
                text = "–" if value is None else f"{value:.2f}"
                dark = ' style="fill:var(--page,#fff)"' if shade > 0.6 else ""
                place = f'x="{x + size / 2:.1f}" y="{y + size / 2 + 4:.1f}" text-anchor="middle" font-size="10"'
                parts.append(f"<text {place}{dark}>{text}</text>")
    for c, column in enumerate(columns):
        parts.append(_slanted(left + (c + 0.5) * size, bottom + 12, column))
    drop = 0.6 * max(map(_wide, columns))
    parts.append(_text((left + WIDTH - RIGHT) / 2, bottom + drop + 34, x_label, at="middle", kind="x-label quiet"))
    middle = (TOP + bottom) / 2
    parts.append(_upright(12, middle, y_label))
    return _svg(title, bottom + drop + 42, parts)


def standalone(svg: str) -> str:
    """A chart as its own file, with its size, its colours and a background."""
    head, _, rest = svg.partition(">")
    (height,) = re.findall(rf'viewBox="0 0 {WIDTH} (\d+)"', head)
    size = f'width="{1.4 * WIDTH:.0f}" height="{1.4 * int(height):.0f}"'
    paper = "svg.chart{background:#fff}@media(prefers-color-scheme:dark){svg.chart{background:#14171c}}"
    return f'{head} xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}{paper}</style>{rest}\n'


class Frame:
    """The box that values are drawn in."""

    def __init__(
        self, x_range: tuple[float, float], y_range: tuple[float, float], top: float, *, left: float = LEFT,
        bottom: float | None = None, right: float = RIGHT,
    ) -> None:  # fmt: skip
        low, high = x_range
        self.x_range = (low, high) if high > low else (low - 0.5, high + 0.5)
        self.y_range, self.top, self.left, self.right = y_range, top, left, WIDTH - right
        self.bottom = top + HEIGHT - TOP - BOTTOM if bottom is None else bottom
        self.below = 0.0

    @property
    def height(self) -> float:
        return self.bottom + BOTTOM + self.below

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def point(self, x: float, y: float) -> str:
        return f"{self.x(x):.1f},{self.y(y):.1f}"

    def axes(self, x_label: str, y_label: str) -> str:
        parts = []
        for value in _ticks(*self.y_range):
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(_text(self.left - 6, y + 4, _number(value), at="end"))
        parts.append(f'<path class="axis" fill="none" d="M{self.left},{self.top}V{self.bottom}H{self.right}"/>')
        parts.append(_upright(13, (self.top + self.bottom) / 2, y_label))
        return "".join([*parts, self.x_title(x_label)])

    def x_title(self, label: str) -> str:
        middle = (self.left + self.right) / 2
        return _text(middle, self.bottom + 34 + self.below, label, at="middle", kind="x-label quiet")

    def numbers(self, ticks: Sequence[float], grid: bool = False) -> list[str]:
        """Numbers along the x axis."""
        parts = []
        for value in ticks:
            x = self.x(value)
            if grid:
                parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{self.top}" y2="{self.bottom}"/>')
            parts.append(_text(x, self.bottom + 15, _number(value), at="middle"))
        return parts

    def words(self, xs: Sequence[float], words: Sequence[str]) -> list[str]:
        """Words along the x axis, slanted if they do not fit side by side; if there are many, only every n-th."""
        given = [(x, word) for x, word in zip(xs, words, strict=True) if word]
        room = (self.right - self.left) / max(1, len(given))
        every = max(1, math.ceil(13 / room))
        longest = max(map(_wide, words), default=0)
        shown = given[::every]
        if longest <= room * every - 4:
            return [_text(self.x(x), self.bottom + 15, word, at="middle") for x, word in shown]
        self.below = 0.6 * longest
        return [_slanted(self.x(x), self.bottom + 12, word) for x, word in shown]


def _line(frame: Frame, number: int, xs: Sequence[float], series: Series) -> str:
    """The line, broken where there is no value."""
    path, pen = [], "M"
    for x, (value, _) in zip(xs, _pairs(series), strict=True):
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{frame.point(x, value)}")
        pen = "L"
    dashed = " dashed" if series.dashed else ""
    return f'<path class="line s{number % COLOURS}{dashed}" d="{"".join(path) or "M0,0"}">{_tip(series.label)}</path>'


def _marks(frame: Frame, number: int, xs: Sequence[float], series: Series, places: Sequence[object]) -> list[str]:
    parts = []
    for x, place, (value, deviation) in zip(xs, places, _pairs(series), strict=True):
        if value is None:
            continue
        at, y = frame.x(x), frame.y(value)
        if deviation:
            ends = f"M{at:.1f},{frame.y(value - deviation):.1f}V{frame.y(value + deviation):.1f}"
            parts.append(f'<path class="whisker s{number % COLOURS}" d="{ends}"/>')
        tip = _tip(f"{series.label}, {place}: {_number(value)}" + (f" ± {_number(deviation)}" if deviation else ""))
        parts.append(_marker(number, at, y, tip))
    return parts


def _marker(number: int, x: float, y: float, inside: str = "") -> str:
    kind, colour = list(MARKERS)[number % len(MARKERS)], f'class="mark s{number % COLOURS}"'
    if kind == "circle":
        return f'<circle {colour} cx="{x:.1f}" cy="{y:.1f}" r="3.5">{inside}</circle>'
    return f'<path {colour} d="M{x:.1f},{y:.1f}{MARKERS[kind]}">{inside}</path>'


def _legend(entries: Sequence[tuple[str, int]]) -> tuple[str, float]:
    """Marks and labels above the box, in as many rows as they need, and their height."""
    if len(entries) < 2:
        return "", 0.0
    parts, x, y = [], float(LEFT), float(TOP)
    for label, number in entries:
        wide = 24 + _wide(label)
        if x + wide > WIDTH - RIGHT and x > LEFT:
            x, y = float(LEFT), y + 16
        parts.append(_marker(number, x + 5, y))
        parts.append(_text(x + 13, y + 4, label, kind="name"))
        x += wide
    return "".join(parts), y - TOP + 14


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    left = LEFT if _wide(title) < WIDTH - LEFT else 4
    heading = _text(left, 14, title, kind="title")
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}"'
    return f'<svg class="chart" {size}><title>{escape(title)}</title>{heading}{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, *, at: str = "start", kind: str = "quiet") -> str:
    """Text whose start, middle or end is at x."""
    anchor = "" if at == "start" else f' text-anchor="{at}"'
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{anchor}>{escape(text)}</text>'


def _upright(x: float, y: float, text: str) -> str:
    place = f'transform="translate({x:.0f} {y:.0f}) rotate(-90)" text-anchor="middle"'
    return f'<text class="y-label quiet" {place}>{escape(text)}</text>'


def _slanted(x: float, y: float, text: str) -> str:
    place = f'transform="translate({x:.1f} {y:.1f}) rotate(-38)" text-anchor="end"'
    return f'<text class="quiet" {place}>{escape(text)}</text>'


def _wide(text: str) -> float:
    """The approximate width of a text; what is placed by it may be slightly off."""
    return sum(8.2 if character.isupper() else 6.4 for character in text)


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _pairs(series: Series) -> list[tuple[float | None, float | None]]:
    deviations = series.deviations or [None] * len(series.values)
    return list(zip(series.values, deviations, strict=True))


def _limits(values: Sequence[float], bottom: float | None, top: float | None) -> tuple[float, float]:
    """The ends of an axis that holds all values, with a little room above."""
    low = min([*values, *([] if bottom is None else [bottom])], default=0.0)
    high = max([*values, *([] if top is None else [top])], default=1.0)
    if high <= low:
        return low - 0.5, high + 0.5
    room = 0.06 * (high - low)
    return low - (room if bottom is None or low < bottom else 0), high + (0 if high == top else room)


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high."""
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= next((factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= about + 1), 10)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    """A number in few characters."""
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}"
