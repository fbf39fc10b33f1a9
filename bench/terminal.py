"""A run's rows as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from .results import Row


def table(title: str, rows: Sequence[Row]) -> Table:
    """Rows for reading, without columns that are empty in all of them."""
    result = Table(title=title, title_justify="left", title_style="bold")
    names = [name for name in ("what", "who", "against", "shape", "dtype") if any(getattr(r, name) for r in rows)]
    for name in names:
        result.add_column(name)
    for heading in ("value", "p20", "p80"):
        result.add_column(heading, justify="right", no_wrap=True)
    result.add_column("unit", no_wrap=True)
    others = [name for name in ("target", "note") if any(getattr(r, name) for r in rows)]
    for name in others:
        result.add_column(name)
    for row in rows:
        numbers = ["", "", ""]
        if row.spread is not None:
            numbers = [f"{value:.3g}" for value in (row.spread.p50, row.spread.p20, row.spread.p80)]
        last = {"target": _verdict(row), "note": row.note}
        result.add_row(*(getattr(row, name) for name in names), *numbers, row.unit, *(last[name] for name in others))
    return result


def _verdict(row: Row) -> str:
    if not row.target:
        return ""
    return f"[green]{row.target} yes[/]" if row.reached else f"[red]{row.target} no[/]"
