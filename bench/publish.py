"""`python -m bench publish`: adds a user's rows to the tracked results, and writes docs/benchmarks.md from all rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stdl_engine.atomic_files import write_atomically

from . import places, registry, report
from .results import Run, append, runs


def publish(folder: Path, names: Iterable[str] = (), *, force: bool = False) -> list[str]:
    """Add the last full run of each benchmark in a folder, or the last quick one where there is no other, to the
    published rows, and write plots and page again. Returns a sentence for each benchmark that was added.

    Without names it is every benchmark that has a run there; if none has, only plots and page are written again. If a
    quick run would replace a full one, nothing is published unless forced.
    """
    published = {name: runs(places.PUBLISHED / f"{name}.csv") for name in registry.BENCHMARKS}
    new: dict[str, Run] = {}
    for name in names or registry.BENCHMARKS:
        own = [run for run in runs(folder / f"{name}.csv") if run.conditions["mode"] != "dry"]
        if not own and names:
            raise ValueError(f"{folder} has no run of {name} to publish: run python -m bench {name} first.")
        own = [run for run in own if not run.quick] or own
        if own and all(one.conditions != own[-1].conditions for one in published[name]):
            new[name] = own[-1]
    worse = [name for name, run in new.items() if run.quick and published[name] and not published[name][-1].quick]
    if worse and not force:
        raise ValueError(
            f"your run of {', '.join(worse)} is quick and the published one is full: measure it in full "
            f"(python -m bench {' '.join(worse)}), or publish it all the same with --force."
        )
    for name, run in new.items():
        published[name].append(run)
    page = report.published_page({name: found for name, found in published.items() if found})
    files = report.files_of(page)  # if this fails, nothing has been written
    for name, run in new.items():
        append(places.PUBLISHED / f"{name}.csv", run.rows)
        for file in folder.glob(f"{name}_*.txt"):  # other files that the benchmark kept beside its rows
            write_atomically(places.PUBLISHED / file.name, file.read_bytes())
    for path, content in files.items():
        write_atomically(path, content)
    return [sentence(name, run) for name, run in new.items()]


def sentence(name: str, run: Run) -> str:
    """Which run was published."""
    where = run.conditions
    when = f"the {where['mode']} run of {where['date'][:10]} at commit {where['commit'] or '?'}"
    return f"published: {name}, {when}, {run.machine}"
