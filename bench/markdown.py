"""Tables in Markdown, and figures in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .results import Row

Text = Callable[[Row], str]
PUBLISHED = "*published*"


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table; a bar in a cell would end the cell, so it is escaped."""
    written = [headings, ["---"] * len(headings), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in written)


def pivot(rows: Sequence[Row], line: Text, column: Text, cell: Text, corner: str = "") -> str:
    """A table with a line and a column for each of their values, in order of appearance; empty if there are no rows.

    Where rows have published ones beside them, a line with those follows.
    """
    names, columns = (list(dict.fromkeys(label(row) for row in rows)) for label in (line, column))
    ours = {(line(row), column(row)): cell(row) for row in rows}
    theirs = {(line(row), column(row)): cell(row.published) for row in rows if row.published}
    lines = []
    for name in names:
        lines.append((name, *(ours.get((name, other), "") for other in columns)))
        if any((name, other) in theirs for other in columns):
            lines.append((PUBLISHED, *(theirs.get((name, other), "") for other in columns)))
    return table((corner, *columns), lines) if rows else ""


def filled(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table without the columns that are empty in all lines; empty if there are no lines."""
    lines = list(lines)
    kept = [place for place in range(len(headings)) if any(line[place] for line in lines)]
    return (
        table([headings[place] for place in kept], [[line[place] for place in kept] for line in lines]) if kept else ""
    )


def listing(rows: Sequence[Row]) -> str:
    """One line for each row; empty if there are no rows."""
    headings = ("what", "who", "against", "size", "dtype", "found", "published", "target", "note")
    lines = []
    for row in rows:
        published = f"{figure(row.published)} {row.unit}" if row.published else ""
        names = (row.what, row.who, row.against, row.shape, row.dtype)
        lines.append((*names, f"{figure(row)} {row.unit}", published, row.target, row.note))
    return filled(headings, lines)


def under(text: str, written: str) -> list[str]:
    """A table with text above it, or nothing if there is no table."""
    return [text, written] if written else []


def figure(row: Row) -> str:
    """The median, and the 20th to 80th percentile where there were several rounds."""
    middle = number(row.spread.p50)
    low, high = number(row.spread.p20), number(row.spread.p80)
    return middle if row.rounds == 1 or low == high else f"{middle} ({low}–{high})"


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.1e}"
