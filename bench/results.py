"""Results: CSV rows that say where, when and with what they were measured, and a table for the terminal."""

from __future__ import annotations

import csv
import datetime
import functools
import importlib.metadata
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

from .timing import Spread

PACKAGES = ("torch", "numba", "llvmlite", "spikingjelly", "snntorch")
COLUMNS = (
    "benchmark", "case", "value", "unit", "target", "p20", "p50", "p80", "rounds",
    "device", "cpu", "threads", "others", "python", *PACKAGES, "commit", "date",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One figure: the median over the rounds, its spread, and what it should reach, if anything."""

    benchmark: str
    case: str
    unit: str
    spread: Spread
    rounds: int
    target: str = ""
    """Such as ">= 0.7" or "<= 3"; nothing where there is none."""

    @property
    def reached(self) -> bool:
        """Whether the median is on the right side of the target."""
        bound = float(self.target[2:])
        return self.spread.p50 >= bound if self.target.startswith(">=") else self.spread.p50 <= bound

    def as_dict(self, environment: dict[str, str]) -> dict[str, str]:
        p20, p50, p80 = (f"{value:.6g}" for value in (self.spread.p20, self.spread.p50, self.spread.p80))
        figures = {"value": p50, "unit": self.unit, "target": self.target, "p20": p20, "p50": p50, "p80": p80}
        return {"benchmark": self.benchmark, "case": self.case, **figures, "rounds": str(self.rounds), **environment}


def environment() -> dict[str, str]:
    """The machine, the versions, the commit and the time, for every row."""
    return {
        "device": "cpu",
        "cpu": cpu_model(),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def append(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Add rows to a CSV file, all of them or none: the new file is written beside the old one and renamed over it."""
    earlier: list[dict[str, str]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            earlier = list(csv.DictReader(file))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows([*earlier, *rows])
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def table(title: str, rows: Sequence[Row]) -> Table:
    """Rows for reading."""
    result = Table(title=title, title_justify="left", title_style="bold")
    result.add_column("case", no_wrap=True)
    for heading in ("value", "p20", "p80"):
        result.add_column(heading, justify="right")
    result.add_column("unit", no_wrap=True)
    result.add_column("target", no_wrap=True)
    for row in rows:
        numbers = (f"{value:.3g}" for value in (row.spread.p50, row.spread.p20, row.spread.p80))
        result.add_row(row.case, *numbers, row.unit, _verdict(row))
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


@functools.cache
def commit() -> str:
    """The commit that was measured, with a plus sign if files have been changed since; nothing outside a repository."""
    git = functools.partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    try:
        head = git(["git", "rev-parse", "--short=12", "HEAD"])
        changed = git(["git", "status", "--porcelain", "--untracked-files=no"])
    except FileNotFoundError:
        return ""
    return "" if head.returncode else head.stdout.strip() + ("+" if changed.stdout.strip() else "")
