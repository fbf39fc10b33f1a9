"""The page that shows results: a user's own figures first, with the published ones beside them; or only the published
ones, docs/benchmarks.md."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from . import places, registry
from .results import Row, Run, runs
from .summary import comparisons, conditions, targets

OPENING = """\
# Benchmarks on your machine

Written by `python -m bench` from the rows in this folder. Your figures come first; below or beside them, named
"published", are those of the project, wherever the same thing was measured."""
PUBLISHED_OPENING = """\
# Benchmarks

Written by `python -m bench publish` from the rows in `bench/results`; do not edit. `make bench` measures on your
machine and writes such a page with your figures first. [bench/README.md](../bench/README.md) says how time is
measured."""
RATIOS = """\
Ratios are ours over theirs: medians of the ratios within a round, with the 20th to 80th percentile in brackets. Above 1
we are ahead, below 1 behind."""


@dataclass(frozen=True)
class Page:
    """A page, its file and the folder of its plots."""

    path: Path
    plots: Path
    opening: str
    shown: Mapping[str, Run]
    """The run of each benchmark."""
    published: Mapping[str, list[Run]]
    """The published runs to show beside it, oldest first."""
    expected: Collection[str] = registry.MAIN
    """Benchmarks to list as missing if they have no run."""


def readers_page(folder: Path) -> Page:
    """The last run of each benchmark in a folder, with the published runs."""
    shown = {name: found[-1] for name in registry.BENCHMARKS if (found := runs(folder / f"{name}.csv"))}
    if not shown:
        raise ValueError(f"{folder} has no results to report: run python -m bench first.")
    published = {name: runs(places.PUBLISHED / f"{name}.csv") for name in shown}
    return Page(folder / places.PAGE, folder, OPENING, shown, published)


def published_page(published: Mapping[str, list[Run]]) -> Page:
    """The last published run of each benchmark."""
    shown = {name: found[-1] for name, found in published.items()}
    return Page(places.PUBLISHED_PAGE, places.PUBLISHED, PUBLISHED_OPENING, shown, {})


def files_of(page: Page) -> dict[Path, bytes | str]:
    """The page and its plots, by their paths; nothing is written yet."""
    plots = draw(page.shown)
    return {page.plots / f"{name}.png": plot for name, plot in plots.items()} | {page.path: document(page, plots)}


def draw(shown: Mapping[str, Run]) -> dict[str, bytes]:
    """The plots of the benchmarks that have one."""
    drawn = {name: registry.plot(name, run.measured) for name, run in shown.items()}
    return {name: plot for name, plot in drawn.items() if plot}


def document(page: Page, plots: Collection[str]) -> str:
    """The text of a page; `plots` are the benchmarks whose plot it embeds."""
    beside = {
        name: found for name, run in page.shown.items() if (found := beside_of(run, page.published.get(name, [])))
    }
    shown = {name: replace(run, rows=matched(run, beside.get(name))) for name, run in page.shown.items()}
    rows = [row for run in shown.values() for row in run.rows]
    parts = [page.opening, RATIOS, *conditions(shown, beside), *targets(rows), *comparisons(rows)]
    for name, run in shown.items():
        parts += heading(name, run, beside.get(name))
        parts += pictures(page, name, embedded=name in plots)
        parts += registry.tables(name, run.measured)
    missing = [name for name in page.expected if name not in shown]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def beside_of(run: Run, published: list[Run]) -> Run | None:
    """The published run to show beside a run: the last one of the same mode, quick or full, so that sizes are the same;
    otherwise the last one."""
    others = [one for one in published if one.conditions != run.conditions]
    alike = [one for one in others if one.quick == run.quick]
    return (alike or others or [None])[-1]


def matched(run: Run, published: Run | None) -> list[Row]:
    """A run's rows, each with the published row of the same thing."""
    theirs = {row.same_thing: row for row in published.measured} if published else {}
    return [replace(row, published=theirs.get(row.same_thing)) for row in run.rows]


def heading(name: str, run: Run, published: Run | None) -> list[str]:
    """What is measured, on which machines, and how."""
    machines = f"`python -m bench {name}`: {run.machine}."
    if published:
        machines += f" Published: {published.machine}."
    return [f"## {registry.title(name)}", machines, registry.description(name)]


def pictures(page: Page, name: str, embedded: bool) -> list[str]:
    """The plot, and the published one beside it."""
    title, parts = registry.title(name), []
    if embedded:
        parts.append(f"![{title}]({_link(page, page.plots / f'{name}.png')})")
    published = places.PUBLISHED / f"{name}.png"
    if page.published.get(name) and published.exists():
        parts.append(f"Published, {page.published[name][-1].machine}:")
        parts.append(f"![{title}, published]({_link(page, published)})")
    return parts


def _link(page: Page, file: Path) -> str:
    return Path(os.path.relpath(file, page.path.parent)).as_posix()
