"""Tables in Markdown, and figures in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Row = dict[str, str]


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table; a bar in a cell would end it and is escaped."""
    written = [headings, ["---"] * len(headings), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in written)


def pivot(
    rows: Sequence[Row], line: Callable[[Row], str], column: Callable[[Row], str], cell: Callable[[Row], str], corner=""
) -> str:
    """A table with a line and a column for each value they take, in order of appearance."""
    lines = list(dict.fromkeys(line(row) for row in rows))
    columns = list(dict.fromkeys(column(row) for row in rows))
    cells = {(line(row), column(row)): cell(row) for row in rows}
    return table((corner, *columns), [(name, *(cells.get((name, other), "") for other in columns)) for name in lines])


def figure(row: Row) -> str:
    """The median, and the 20th to 80th percentile where there were several rounds."""
    if not row["value"]:
        return "–"
    middle = number(row["value"])
    low, high = number(row["p20"]), number(row["p80"])
    return middle if int(row["rounds"]) == 1 or low == high else f"{middle} ({low}–{high})"


def number(text: str) -> str:
    """Three digits that count, and no exponent."""
    value = float(text)
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.1e}"
