"""Results: rows that say where, when and with what they were measured, and the CSV files they are kept in."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stdl_engine.atomic_files import write_atomically

from .machine import CONDITIONS
from .timing import Spread

FIGURE = (
    "benchmark", "what", "who", "against", "shape", "dtype", "value", "unit", "target", "p20", "p50", "p80", "rounds",
    "note",
)  # fmt: skip
COLUMNS = (*FIGURE, *CONDITIONS)
TEXTS = ("benchmark", "what", "who", "against", "shape", "dtype", "unit", "target", "note")
NO_RIVALS = ("published", "planned / measured", "paper", "by hand")
"""Things that a ratio may refer to without being a competition."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure: the median over the rounds, its spread, and what it should reach, if anything."""

    benchmark: str
    what: str
    """What was done, such as "forward and backward"."""
    who: str = ""
    """Who did it: a layer, a rule, a kernel."""
    against: str = ""
    """What a ratio is relative to; empty for other figures."""
    shape: str = ""
    dtype: str = ""
    unit: str
    spread: Spread | None
    """None if there is no figure; the note then says why."""
    rounds: int = 1
    target: str = ""
    """Such as ">= 0.7" or "<= 3"; empty if there is none."""
    note: str = ""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """The conditions of the run, see machine.py."""
    published: Row | None = None
    """The published row of the same thing, where a page shows both."""

    @property
    def same_thing(self) -> tuple[str, ...]:
        """Equal for two rows that measure the same thing, whenever and wherever."""
        return self.benchmark, self.what, self.who, self.against, self.shape, self.dtype, self.unit

    @property
    def bound(self) -> float:
        """The number of the target."""
        return float(self.target[2:])

    @property
    def reached(self) -> bool:
        """Whether the median meets the target; a row without a figure does not."""
        if self.spread is None:
            return False
        return self.spread.p50 >= self.bound if self.target.startswith(">=") else self.spread.p50 <= self.bound

    @property
    def has_rival(self) -> bool:
        """Whether this is a ratio of us to someone else, where larger is better."""
        ratio = self.spread is not None and self.unit in ("x", "x less") and bool(self.against)
        return ratio and not self.against.endswith(NO_RIVALS) and not self.target.startswith("<=")

    def as_dict(self) -> dict[str, str]:
        """The row in the form of the CSV file."""
        p20 = p50 = p80 = ""
        if self.spread is not None:
            p20, p50, p80 = (f"{value:.6g}" for value in (self.spread.p20, self.spread.p50, self.spread.p80))
        figure = {"value": p50, "p20": p20, "p50": p50, "p80": p80, "rounds": str(self.rounds)}
        return {name: getattr(self, name) for name in TEXTS} | figure | dict(self.conditions)

    @classmethod
    def from_dict(cls, row: Mapping[str, str]) -> Row:
        """The row from the CSV file; a column that was added later is empty in an older file."""
        spread = Spread(*(float(row[name]) for name in ("p20", "p50", "p80"))) if row["value"] else None
        conditions = {name: row.get(name, "") for name in CONDITIONS}
        texts = {name: row.get(name, "") for name in TEXTS}
        return cls(**texts, spread=spread, rounds=int(row["rounds"]), conditions=conditions)


@dataclass(frozen=True)
class Run:
    """The rows of one run of one benchmark."""

    rows: Sequence[Row]

    @property
    def conditions(self) -> Mapping[str, str]:
        return self.rows[0].conditions

    @property
    def quick(self) -> bool:
        return self.conditions["mode"] == "quick"

    @property
    def machine(self) -> str:
        """Such as "Some GPU with Some CPU, 8 threads"."""
        device, threads = self.conditions["device"], int(self.conditions["threads"] or 0)
        gpu = "" if device == "cpu" else f"{device} with "
        return f"{gpu}{self.conditions['cpu']}, {threads} thread{'' if threads == 1 else 's'}"

    @property
    def measured(self) -> list[Row]:
        """The rows that have a figure."""
        return [row for row in self.rows if row.spread is not None]


def runs(path: Path) -> list[Run]:
    """The runs in a results file, oldest first; none if there is no file."""
    by_date: dict[str, list[Row]] = {}
    for row in read(path) if path.exists() else []:
        by_date.setdefault(row.conditions["date"], []).append(row)
    return [Run(rows) for rows in by_date.values()]


def read(path: Path) -> list[Row]:
    """The rows of a results file, oldest first; any other file is an error."""
    rows = []
    for number, line in enumerate(_lines(path), start=2):
        try:
            rows.append(Row.from_dict(line))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is broken at row {number} ({error}): delete that row, or the file.") from error
    return rows


def append(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a CSV file, all of them or none; existing lines stay as they are."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*(_lines(path) if path.exists() else []), *(row.as_dict() for row in rows)])
    write_atomically(path, text.getvalue())


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in ("benchmark", "what", "value", "date") if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path} is no file of results: it has no column {missing[0]!r}; move it elsewhere.")
        return list(reader)
