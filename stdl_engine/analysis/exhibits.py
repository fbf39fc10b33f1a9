"""What an analysis gives to the page: sections of exhibits, each with the values behind it."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Rows = Sequence[Sequence[Any]]
Shown = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headings and cells of a table for people."""


@dataclass(frozen=True)
class Exhibit:
    """A figure, a table, or both, of the same values.

    Attributes:
        name: of its CSV, data/NAME.csv.
        caption: says what was run.
        columns, rows: the values; None is a missing value.
        pictures: charts, as SVG.
        table: the values that people want to read.
        files: further files behind it, by name.
    """

    name: str
    title: str
    caption: str
    columns: Sequence[str]
    rows: Rows
    pictures: Sequence[str] = ()
    table: Shown | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    def as_csv(self) -> str:
        """An empty cell is a value that is undefined or missing."""
        page = io.StringIO()
        writer = csv.writer(page, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in self.rows)
        return page.getvalue()


@dataclass(frozen=True)
class Section:
    """One analysis: what it is about, and what came out."""

    title: str
    text: str
    exhibits: Sequence[Exhibit]


def mean_of(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """The mean of the values that are there and, if there are several, their sample standard deviation."""
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None


def said(values: Sequence[float], scale: float = 1.0, digits: int = 2, unit: str = "") -> str:
    """Mean and deviation for a cell."""
    mean, deviation = mean_of(values)
    if mean is None:
        return "–"
    spread = "" if deviation is None else f" ± {scale * deviation:.{digits}f}"
    return f"{scale * mean:.{digits}f}{spread}{unit}"
