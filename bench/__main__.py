"""Measure, compare, and keep the results: `python -m bench [NAMES...] [--quick] [--json] [--out DIR]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

# oneDNN's kernels for newer instruction sets die with an illegal instruction on some virtual machines.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stdl_engine.files import write_atomically

from . import report
from .others import Others
from .registry import BENCHMARKS, MAIN, claim, load
from .results import append, environment, table
from .session import Session

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
ROUNDS, QUICK_ROUNDS = 20, 5


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    # With --json standard output is for the rows alone.
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 160)
    if options.list:
        for name in BENCHMARKS:
            console.print(f"[bold]{name}[/]  {claim(name)}", highlight=False)
        return 0
    try:
        found = [row for name in options.names for row in measure(name, options, console)]
        if options.names and options.json:
            print(json.dumps(found, indent=2))
        path = DOCUMENT if options.out.resolve() == RESULTS.resolve() else options.out / "benchmarks.md"
        if options.report or any(name in MAIN for name in options.names):
            write_atomically(path, report.document(options.out, path.parent))
            console.print(f"written: {path}", highlight=False)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"python -m bench: {error}", file=sys.stderr)
        return 1
    return 0


def measure(name: str, options: argparse.Namespace, console: Console) -> list[dict[str, str]]:
    """Run one benchmark, print its table and append its rows to the results."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    others = Others()
    with Progress(*columns, console=console, transient=True) as progress:
        session = Session(name, options.rounds, progress, quick=options.quick)
        where = environment(session.device, "quick" if options.quick else "full")
        load(name).run(session)
    busy = others.cores()
    where["others"] = "" if busy is None else f"{busy:.2f}"
    if not options.json:
        console.print(table(f"{name}: {claim(name)}", session.rows))
    for note in session.notes:
        console.print(f"  {note}", highlight=False, markup=False)
    rows = [row.as_dict(where) for row in session.rows]
    for file, content in session.files.items():
        write_atomically(options.out / file, content)
    path = options.out / f"{name}.csv"
    append(path, rows)
    console.print(
        f"  {where['cpu']}, {where['threads']} threads, {where['others'] or '?'} cores busy with others' work, "
        f"torch {where['torch']}, {options.rounds} rounds; rows added to {path}\n",
        highlight=False,
    )
    return rows


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench", description="Measure, print a table, append rows to CSV files.")
    names = f"{', '.join(BENCHMARKS)}; all (the default) is {', '.join(MAIN)}; report only writes the document"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds: minutes, not an hour")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    parser.add_argument("--list", action="store_true", help="say what each benchmark shows, and stop")
    parser.add_argument("--rounds", type=int, help=f"interleaved rounds ({ROUNDS}; with --quick {QUICK_ROUNDS})")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (bench/results)")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in (*BENCHMARKS, "all", "report"):
            parser.error(f"no benchmark {name!r}: choose from all, report, {', '.join(BENCHMARKS)}.")
    options.report = "report" in options.names
    wanted = options.names or ["all"]
    expanded = [one for name in wanted for one in (MAIN if name == "all" else (name,)) if one != "report"]
    options.names = list(dict.fromkeys(expanded))
    if options.rounds is None:
        options.rounds = QUICK_ROUNDS if options.quick else ROUNDS
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}: medians need at least 2.")
    try:  # before measuring for minutes
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot write results to {options.out} ({error.strerror}): pass another folder with --out.")
    if not os.access(options.out, os.W_OK):
        parser.error(f"cannot write results to {options.out} (no permission): pass another folder with --out.")
    return options


if __name__ == "__main__":
    sys.exit(main())
