"""docs/benchmarks.md from the results: machine, versions and conditions, what was won and lost, then the tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from .markdown import figure, table
from .registry import MAIN, claim
from .report_sections import SECTIONS
from .results import PACKAGES, read

Rows = Sequence[dict[str, str]]
TIMED = ("kernels", "training")
"""The benchmarks that other work on the machine disturbs; the others count bytes."""
NO_CONTEST = ("published", "planned / measured", "paper", "by hand")
"""Whom a ratio may be against without there being a winner."""


def document(results: Path, folder: Path) -> str:
    """The whole document, for a file in `folder`, from the CSV files in `results`."""
    runs = {name: rows for name in MAIN if (rows := last_run(results / f"{name}.csv"))}
    if not runs:
        raise ValueError(f"{results} has no results to report: run python -m bench first.")
    pictures = os.path.relpath(results, folder)
    parts = [
        "# Benchmarks",
        "Written by `python -m bench report` from the CSV files of `python -m bench`; do not edit.\n"
        "`bench/README.md` says how time is taken. Ratios are of speed, ours over theirs, medians\n"
        "of ratios within a round, the 20th to 80th percentile in brackets: above 1 we are faster, below 1 slower.",
        conditions(runs),
        verdicts(runs),
        lost(runs),
    ]
    for name, rows in runs.items():
        parts += [f"## {name}", claim(name), *SECTIONS[name](rows)]
        if (results / f"{name}.png").exists():
            parts.append(f"![{name}]({pictures}/{name}.png)")
    missing = [name for name in MAIN if name not in runs]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def last_run(path: Path) -> list[dict[str, str]]:
    """The rows of the last full run in a results file, or of the last quick one where there is no other."""
    rows = read(path) if path.exists() else []
    rows = [row for row in rows if row["mode"] == "full"] or rows
    return [row for row in rows if row["date"] == rows[-1]["date"]]


def conditions(runs: dict[str, Rows]) -> str:
    """Where, when and with what each benchmark was run."""
    headings = ("", "commit", "date", "run", "rounds", "device", "processor", "threads", "cores busy with other work")
    lines = []
    for name, rows in runs.items():
        first = rows[0]
        rounds = max(int(row["rounds"]) for row in rows)
        device, others = first["device"], first["others"] or "?"
        place = (device, first["cpu"], first["threads"], others)
        lines.append((name, first["commit"] or "?", first["date"][:10], first["mode"], str(rounds), *place))
    versions = {}
    for package in PACKAGES:
        found = dict.fromkeys(rows[0][package] or "not installed" for rows in runs.values())
        versions[package] = " and ".join(found)
    listed = ", ".join(f"{package} {version}" for package, version in versions.items())
    busy = [name for name, rows in runs.items() if name in TIMED and float(rows[0]["others"] or 0) > 0.3]
    warning = ""
    if busy:
        warning = f"\n\n**The machine was not quiet during {', '.join(busy)}: take no absolute figure of them.**"
    return "## Conditions\n\n" + table(headings, lines) + f"\n\nVersions: {listed}." + warning


def verdicts(runs: dict[str, Rows]) -> str:
    """Every figure that had a target, all sizes of a thing in one line."""
    lines = []
    for name, rows in runs.items():
        aims = [row for row in rows if row["target"]]
        if name == "static":  # many, and all alike: only those that miss
            kept = sum(reached(row) for row in aims)
            found = f"{kept} of {len(aims)}"
            lines.append((name, "bytes and launches at their minimum", found, "all", _yes(kept == len(aims))))
            aims = [row for row in aims if not reached(row)]
        grouped: dict[tuple[str, str], Rows] = {}
        for row in aims:
            grouped.setdefault((_what(row), row["target"]), []).append(row)
        for (what, target), group in grouped.items():
            kept = sum(reached(row) for row in group)
            verdict = f"**{kept} of {len(group)}**" if 0 < kept < len(group) else _yes(kept > 0)
            lines.append((name, what, _by_size(group, unit=True), target, verdict))
    return "## Targets\n\n" + table(("", "what", "found", "target", "reached"), lines)


def lost(runs: dict[str, Rows]) -> str:
    """Every comparison in which we are behind, and how many there were; who was refused or missing."""
    contests = [row for rows in runs.values() for row in rows if is_contest(row)]
    behind = [row for row in contests if float(row["value"]) < 1]
    text = f"## Where we are behind\n\n{len(behind)} of {len(contests)} comparisons."
    if behind:
        grouped: dict[tuple[str, str], Rows] = {}
        for row in behind:
            grouped.setdefault((_what(row), row["dtype"]), []).append(row)
        lines = [(what, dtype, _by_size(group)) for (what, dtype), group in grouped.items()]
        text += "\n\n" + table(("what", "dtype", "size: ratio"), lines)
    refused = [row for rows in runs.values() for row in rows if not row["value"] and row["note"]]
    if refused:
        lines = [(row["who"], row["what"], row["note"]) for row in refused]
        text += "\n\nNot timed, and why:\n\n" + table(("who", "what", "why"), lines)
    return text


def is_contest(row: dict[str, str]) -> bool:
    """Whether a row compares us with someone, larger being better."""
    against = row["against"].rpartition(", ")[2] if row["against"].endswith("published") else row["against"]
    ratio = bool(row["value"]) and row["unit"] in ("x", "x less") and bool(against)
    return ratio and against not in NO_CONTEST and not row["target"].startswith("<=")


def reached(row: dict[str, str]) -> bool:
    """Whether the median is on the right side of the target."""
    if not row["value"]:
        return False
    value, bound = float(row["value"]), float(row["target"][2:])
    return value >= bound if row["target"].startswith(">=") else value <= bound


def _what(row: dict[str, str]) -> str:
    against = f" against {row['against']}" if row["against"] else ""
    return f"{row['what']}: {row['who']}{against}"


def _by_size(rows: Rows, unit: bool = False) -> str:
    """The figures of one thing, each after its size."""
    found = []
    for row in rows:
        size = f"{row['shape']}: " if row["shape"] else ""
        found.append(f"{size}{figure(row)}" + (f" {row['unit']}" if unit else ""))
    return "; ".join(found)


_yes: Callable[[bool], str] = {True: "yes", False: "**no**"}.get
