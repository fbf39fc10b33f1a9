"""Measure and keep the results: `python -m bench [NAMES...] [--list] [--rounds N] [--out DIR]`."""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .others import Others
from .registry import BENCHMARKS, load
from .results import append, environment, table
from .session import Session


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    if options.list:
        for name in BENCHMARKS:
            console.print(f"[bold]{name}[/]  {claim(name)}", highlight=False)
        return 0
    for name in options.names or BENCHMARKS:
        measure(name, options.rounds, options.out, console)
    return 0


def measure(name: str, rounds: int, out: Path, console: Console) -> None:
    """Run one benchmark, print its table and append its rows to the results."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    where, others = environment(), Others()
    with Progress(*columns, console=console, transient=True) as progress:
        session = Session(name, rounds, progress)
        load(name).run(session)
    busy = others.cores()
    where["others"] = "" if busy is None else f"{busy:.2f}"
    console.print(table(f"{name}: {claim(name)}", session.rows))
    for note in session.notes:
        console.print(f"  {note}", highlight=False, markup=False)
    path = out / f"{name}.csv"
    append(path, [row.as_dict(where) for row in session.rows])
    console.print(
        f"  {where['cpu']}, {where['threads']} threads, {where['others'] or '?'} cores busy with others' work, "
        f"torch {where['torch']}, {rounds} rounds; rows added to {path}\n",
        highlight=False,
    )


def claim(name: str) -> str:
    """What a benchmark sets out to show: the first line of its docstring."""
    return inspect.getdoc(load(name)).splitlines()[0]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench", description="Measure, print a table, append rows to CSV files.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which (all if none): {', '.join(BENCHMARKS)}")
    parser.add_argument("--list", action="store_true", help="say what each benchmark shows, and stop")
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds (20)")
    parser.add_argument(
        "--out", type=Path, default=Path("bench/results"), help="folder of the CSV files (bench/results)"
    )
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}: choose from {', '.join(BENCHMARKS)}.")
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}: medians need at least 2.")
    try:  # before measuring for minutes
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot write results to {options.out} ({error.strerror}): pass another folder with --out.")
    return options


if __name__ == "__main__":
    sys.exit(main())
