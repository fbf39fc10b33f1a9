"""The effect of a setting on accuracy, peak memory and time: one recipe at several values of it, by some rules."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..planning.budgets import format_bytes
from . import charts
from .exhibits import Exhibit, mean_of, said
from .runs_of_report import Trained


@dataclass(frozen=True)
class Point:
    """One value of the setting under one rule: its runs, one for each seed, and the paper's figures for it."""

    rule: str
    value: str
    runs: Sequence[Trained]
    published: str = "–"
    more: tuple[str, ...] = ()
    """Further cells of its row."""

    def of(self, name: str) -> list[float]:
        return [run.summary[name] for run in self.runs]

    def peak(self) -> float:
        """Bytes of a training step, the mean over runs."""
        return statistics.fmean(self.of("peak_bytes"))

    def milliseconds(self) -> list[float]:
        """Training time per sample."""
        return [1000 / run.summary["samples_per_second"] for run in self.runs]


COLUMNS = (
    "rule", "value", "accuracy", "accuracy_deviation", "peak_bytes", "milliseconds_per_sample",
    "milliseconds_deviation",
)  # fmt: skip


def exhibit(
    name: str, title: str, what: str, points: Sequence[Point], caption: str, published: str, *,
    more: tuple[str, ...] = (), together: bool = False,
) -> Exhibit:  # fmt: skip
    """Accuracy, peak and time against a setting: a line for each rule, or if `together` a bar for each point. `what` is
    the setting with its unit, `published` says what the paper's figures refer to, and `more` heads further cells."""
    rows, shown = [], []
    for point in points:
        accuracy, time = mean_of(point.of("test_accuracy")), mean_of(point.milliseconds())
        rows.append((point.rule, point.value, *accuracy, point.peak(), *time, *point.more))
        figures = said(point.of("test_accuracy"), 100), format_bytes(point.peak()), said(point.milliseconds(), digits=1)
        label = (point.value,) if together else (point.rule.upper(), point.value)
        shown.append((*label, *point.more, *figures, *((point.published,) if published else ())))
    headings = (*(() if together else ("rule",)), what, *more, "accuracy, %", "peak", "ms/sample")
    headings += ("paper",) if published else ()
    note = " Times were measured whatever else the machine was doing."
    note += f" The paper's column is {published}." if published else ""
    return Exhibit(
        name, title, caption + note, (*COLUMNS, *more), rows,
        _bars(points, what) if together else _lines(points, what), (headings, shown),
    )  # fmt: skip


MEASURES = (
    ("Test accuracy", "test accuracy, %"),
    ("Peak memory", "peak of a training step, MB"),
    ("Training time", "ms per sample"),
)


def _values(point: Point) -> list[tuple[float | None, float | None]]:
    """Mean and deviation of each measure."""
    accuracy = [100 * value for value in point.of("test_accuracy")]
    return [mean_of(accuracy), (point.peak() / 1e6, None), mean_of(point.milliseconds())]


def _lines(points: Sequence[Point], what: str) -> list[str]:
    rules = list(dict.fromkeys(point.rule for point in points))
    values = list(dict.fromkeys(point.value for point in points))
    pictures = []
    for number, (title, unit) in enumerate(MEASURES):
        series = []
        for rule in rules:
            own = {point.value: _values(point)[number] for point in points if point.rule == rule}
            pairs = [own.get(value, (None, None)) for value in values]
            series.append(charts.Series(rule.upper(), [mean for mean, _ in pairs], [spread for _, spread in pairs]))
        pictures.append(charts.lines(title, what, unit, values, series, bottom=None if number == 0 else 0.0))
    return pictures


def _bars(points: Sequence[Point], what: str) -> list[str]:
    return [
        charts.bars(title, what, unit, [(point.value, *_values(point)[number]) for point in points])
        for number, (title, unit) in enumerate(MEASURES)
    ]
