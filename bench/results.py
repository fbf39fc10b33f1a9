"""Results: CSV rows that say where, when and with what they were measured, and a table for the terminal."""

from __future__ import annotations

import csv
import datetime
import functools
import importlib.metadata
import io
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

from stdl_engine.files import write_atomically
from stdl_engine.runs import PACKAGES as ENGINE_PACKAGES
from stdl_engine.runs import commit, versions

from .timing import Spread

MORE_PACKAGES = ("llvmlite", "snntorch", "norse", "sinabs")
PACKAGES = ("python", "stdl-engine", *ENGINE_PACKAGES, *MORE_PACKAGES)
COLUMNS = (
    "benchmark", "what", "who", "against", "shape", "dtype", "value", "unit", "target", "p20", "p50", "p80", "rounds",
    "note", "mode", "device", "cpu", "threads", "others", *PACKAGES, "commit", "date",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure: the median over the rounds, its spread, and what it should reach, if anything."""

    benchmark: str
    what: str
    """What was done, such as "forward and backward"."""
    who: str = ""
    """Who did it: a layer, a rule, a kernel."""
    against: str = ""
    """Whom a ratio is against; nothing for other figures."""
    shape: str = ""
    dtype: str = ""
    unit: str
    spread: Spread | None
    """None where there is no figure; the note then says why."""
    rounds: int = 1
    target: str = ""
    """Such as ">= 0.7" or "<= 3"; nothing where there is none."""
    note: str = ""

    @property
    def reached(self) -> bool:
        """Whether the median is on the right side of the target; no figure reaches none."""
        if self.spread is None:
            return False
        bound = float(self.target[2:])
        return self.spread.p50 >= bound if self.target.startswith(">=") else self.spread.p50 <= bound

    def as_dict(self, environment: dict[str, str]) -> dict[str, str]:
        """The row as the CSV file has it."""
        fields = ("benchmark", "what", "who", "against", "shape", "dtype", "unit", "target", "note")
        row = {field: getattr(self, field) for field in fields} | {"rounds": str(self.rounds)}
        p20 = p50 = p80 = ""
        if self.spread is not None:
            p20, p50, p80 = (f"{value:.6g}" for value in (self.spread.p20, self.spread.p50, self.spread.p80))
        return row | {"value": p50, "p20": p20, "p50": p50, "p80": p80} | environment


def environment(device: str, mode: str) -> dict[str, str]:
    """The machine, the versions, the commit and the time, for every row of one run."""
    packages = versions() | {package: version(package) for package in MORE_PACKAGES}
    return {
        "mode": mode,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "cpu": cpu_model(),
        "threads": str(torch.get_num_threads()),
        **{package: packages.get(package, "") for package in PACKAGES},
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a results file, oldest first; a file that is none is an error."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in ("benchmark", "what", "value", "date") if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path} is no file of results: it has no column {missing[0]!r}; move it elsewhere.")
        return list(reader)


def append(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Add rows to a CSV file, all of them or none."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*(read(path) if path.exists() else []), *rows])
    write_atomically(path, text.getvalue())


def table(title: str, rows: Sequence[Row]) -> Table:
    """Rows for reading; columns that all of them leave empty are left out."""
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


@functools.cache
def cpu_model() -> str:
    """The processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def version(package: str) -> str:
    """The installed version, or nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
