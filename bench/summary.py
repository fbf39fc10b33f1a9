"""The part of a page above its tables: conditions, targets, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from .machine import PACKAGES
from .markdown import PUBLISHED, figure, filled, table, under
from .results import Row, Run

BUSY = 0.3
"""If other work kept more cores busy than this, timings are doubtful."""
Key = TypeVar("Key", bound=Hashable)


def conditions(shown: Mapping[str, Run], beside: Mapping[str, Run]) -> list[str]:
    """Where, when and with what each benchmark was run, including the published runs beside them."""
    headings = ("", "commit", "date", "run", "rounds", "device", "processor", "threads", "cores busy with other work")
    lines, busy = [], []
    for name, run in shown.items():
        lines.append(_conditions(name, run))
        if name in beside:
            lines.append(_conditions(f"{name}, {PUBLISHED}", beside[name]))
        if _is_timed(run) and float(run.conditions["others"] or 0) > BUSY:
            busy.append(name)
    parts = ["## Conditions", table(headings, lines), f"Versions: {versions(shown.values())}."]
    if beside and versions(beside.values()) != versions(shown.values()):
        parts.append(f"Versions of the published runs: {versions(beside.values())}.")
    if busy:
        parts.append(f"**The machine was not quiet during {', '.join(busy)}: do not rely on absolute figures there.**")
    return parts


def _conditions(name: str, run: Run) -> tuple[str, ...]:
    where, rounds = run.conditions, max(row.rounds for row in run.rows)
    place = (where["device"], where["cpu"], where["threads"], where["others"] or "?")
    return name, where["commit"] or "?", where["date"][:10], where["mode"], str(rounds), *place


def _is_timed(run: Run) -> bool:
    """Whether other work on the machine disturbs a benchmark; one that counts bytes has no rounds."""
    return any(row.rounds > 1 for row in run.rows)


def versions(shown: Iterable[Run]) -> str:
    """For every package, all versions that were used."""
    shown = list(shown)
    used = {package: dict.fromkeys(run.conditions[package] or "not installed" for run in shown) for package in PACKAGES}
    return ", ".join(f"{package} {' and '.join(found)}" for package, found in used.items())


def targets(rows: Sequence[Row]) -> list[str]:
    """How many figures reached the target they had, and those that did not."""
    aims = [row for row in rows if row.target]
    lines = []
    for (benchmark, target, unit), group in grouped(aims, lambda row: (row.benchmark, row.target, row.unit)).items():
        reached = sum(row.reached for row in group)
        emphasis = "" if reached == len(group) else "**"
        lines.append((benchmark, f"{target} {unit}", f"{emphasis}{reached} of {len(group)}{emphasis}"))
    missed = grouped([row for row in aims if not row.reached], lambda row: (row.benchmark, label(row), row.target))
    lines_missed = [
        (benchmark, what, by_size(group), published_by_size(group), f"{target} {group[0].unit}")
        for (benchmark, what, target), group in missed.items()
    ]
    not_reached = filled(("", "what", "size: found", "published", "target"), lines_missed)
    return ["## Targets", table(("", "target", "reached"), lines), *under("Not reached:", not_reached)] if lines else []


def comparisons(rows: Sequence[Row]) -> list[str]:
    """In how many comparisons we are ahead, every one in which we are behind, and what was not measured."""
    rivals = [row for row in rows if row.has_rival]
    behind = grouped([row for row in rivals if row.spread.p50 < 1], lambda row: (label(row), row.dtype))
    lines = [(what, dtype, by_size(group), published_by_size(group)) for (what, dtype), group in behind.items()]
    parts = []
    if rivals:
        parts.append(f"{tally(rivals)}{':' if behind else '.'}")
    if lines:
        parts.append(filled(("what", "dtype", "size: ratio", "published"), lines))
    published = [row.published for row in rivals if row.published]
    if published:
        parts.append(f"Published, where the same was measured: {tally(published).lower()}.")
    refused = grouped([row for row in rows if row.spread is None], lambda row: (row.who, row.note))
    lines = [(who, "; ".join(dict.fromkeys(row.what for row in group)), why) for (who, why), group in refused.items()]
    parts += under("Not measured, and why:", filled(("who", "what", "why"), lines))
    return ["## Comparisons", *parts] if parts else []


def tally(rivals: Sequence[Row]) -> str:
    """How many of these ratios are above, at and below 1."""
    ahead = sum(row.spread.p50 > 1 for row in rivals)
    behind = sum(row.spread.p50 < 1 for row in rivals)
    even = len(rivals) - ahead - behind
    equal = f", even in {even}" if even else ""
    return f"Ahead in {ahead} of {len(rivals)} comparisons{equal}, behind in {behind}"


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Rows by their key, in order of appearance."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def label(row: Row) -> str:
    """What was done, by whom and against whom."""
    who = f": {row.who}" if row.who else ""
    against = f" against {row.against}" if row.against else ""
    return f"{row.what}{who}{against}"


def by_size(rows: Iterable[Row]) -> str:
    """The figures of one measurement, each after its size."""
    return "; ".join(f"{row.shape}: {figure(row)}" if row.shape else figure(row) for row in rows)


def published_by_size(rows: Iterable[Row]) -> str:
    """The same for the published rows beside these."""
    return by_size(row.published for row in rows if row.published)
