"""Measure, compare, and keep the results: `python -m bench [NAMES...] [--quick] [--json] [--out DIR]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

# oneDNN's kernels for newer instruction sets die with an illegal instruction on some virtual machines.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from .libraries import missing

if absent := missing("rich") or missing("matplotlib"):
    print(f"python -m bench: {absent}.", file=sys.stderr)
    sys.exit(2)

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stdl_engine.atomic_files import write_atomically
from stdl_engine.unread_output import ending_quietly

from . import gpu, gpu_page, places, registry, report
from .machine import conditions
from .others import Others
from .publish import publish
from .registry import BENCHMARKS, MAIN
from .results import Row, Run, append
from .session import Session
from .terminal import table

ROUNDS, QUICK_ROUNDS, DRY_ROUNDS = 20, 5, 2
ERRORS = (ValueError, RuntimeError, OSError, ImportError)


def main(arguments: list[str] | None = None) -> int:
    with ending_quietly():
        return command(arguments)
    return 0


def command(arguments: list[str] | None) -> int:
    options = parse(arguments)
    # With --json only the rows go to standard output.
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 160)
    try:
        return ACTIONS[options.action](options, console)
    except BrokenPipeError:
        raise
    except ERRORS as error:
        return fail(error)
    except KeyboardInterrupt:
        print("python -m bench: stopped; python -m bench report shows what was finished.", file=sys.stderr)
        return 130


def fail(error: Exception) -> int:
    """One sentence, and the command's exit code."""
    print(f"python -m bench: {error}", file=sys.stderr)
    return 1


def list_benchmarks(options: argparse.Namespace, console: Console) -> int:
    for name in BENCHMARKS:
        console.print(f"[bold]{name}[/]  {registry.title(name)}", highlight=False)
    return 0


def publish_rows(options: argparse.Namespace, console: Console) -> int:
    sentences = publish(options.out, options.names, force=options.force)
    for sentence in sentences or [f"nothing in {from_here(options.out)} that is not published already"]:
        console.print(sentence, highlight=False)
    console.print(f"written: {from_here(places.PUBLISHED_PAGE)}", highlight=False)
    return 0


def write_page(options: argparse.Namespace, console: Console) -> int:
    for path, content in report.files_of(report.readers_page(options.out)).items():
        write_atomically(path, content)
    console.print(f"written: {from_here(options.out / places.PAGE)}", highlight=False)
    return 0


def measure_all(options: argparse.Namespace, console: Console) -> int:
    """Run the benchmarks, then write the page; one that fails does not stop the others."""
    rows, failed = [], []
    for name in options.names:
        try:
            rows += measure(name, options, console)
        except ERRORS as error:
            failed.append(fail(error))
    if options.json:
        print(json.dumps([row.as_dict() for row in rows], indent=2))
    if len(failed) < len(options.names):
        write_page(options, console)
    return max(failed, default=0)


def measure(name: str, options: argparse.Namespace, console: Console) -> list[Row]:
    """Run one benchmark, print its table and append its rows to the results."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    others = Others()
    modes = {"quick": options.quick, "dry": options.dry_run}
    with Progress(*columns, console=console, transient=True) as progress:
        session = Session(name, options.rounds, progress, **modes, device=registry.device(name))
        where = conditions(session.device, session.sizes("full", "quick", "dry"))
        registry.load(name).run(session)
    if not session.rows:
        raise RuntimeError(f"{name} measured nothing: its run(session) has to record something.")
    busy = others.cores()
    where["others"] = "" if busy is None else f"{busy:.2f}"
    if not options.json:
        console.print(table(f"{name}: {registry.title(name)}", session.rows))
    for note in session.notes:
        console.print(f"  {note}", highlight=False, markup=False)
    rows = [replace(row, conditions=where) for row in session.rows]
    for file, content in session.files.items():
        write_atomically(options.out / file, content)
    path = options.out / f"{name}.csv"
    append(path, rows)
    console.print(
        f"  {Run(rows).machine}, {where['others'] or '?'} cores busy with others' work, torch {where['torch']}, "
        f"{options.rounds} rounds; rows added to {from_here(path)}\n",
        highlight=False,
    )
    return rows


def measure_gpu(options: argparse.Namespace, console: Console) -> int:
    """Run everything for a GPU, and write the page to send back."""
    code = gpu.run(options.out, quick=options.quick, dry=options.dry_run, console=console)
    console.print(f"written: {from_here(options.out / gpu_page.PAGE)}", highlight=False)
    return code


def from_here(path: Path) -> Path:
    """A path in its shortest form."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


ACTIONS = {
    "list": list_benchmarks,
    "measure": measure_all,
    "report": write_page,
    "publish": publish_rows,
    "gpu": measure_gpu,
}
DESCRIPTION = """\
Measure speed and memory on this machine. Rows, plots and a page with the published figures beside yours go to
bench/mine, which git ignores. `report` only writes that page again. `publish` adds your rows to the published ones in
bench/results and writes docs/benchmarks.md; nothing else changes a file that git tracks. `gpu` runs the tests and
benchmarks of a GPU and writes a page to send back, bench/mine/gpu/gpu.md."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench", description=DESCRIPTION)
    names = f"report, publish, gpu, or what to measure: {', '.join(BENCHMARKS)}; all (the default) is {', '.join(MAIN)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds: minutes, not an hour")
    parser.add_argument(
        "--dry-run", action="store_true", help="only go through the code, at tiny sizes, on any machine"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    parser.add_argument("--list", action="store_true", help="say what each benchmark measures, and stop")
    parser.add_argument("--rounds", type=int, help=f"interleaved rounds ({ROUNDS}; with --quick {QUICK_ROUNDS})")
    parser.add_argument("--out", type=Path, help="folder of the results (bench/mine)")
    parser.add_argument("--force", action="store_true", help="publish a quick run over a full one")
    options = parser.parse_args(arguments)
    options.action = "list" if options.list else "measure"
    if options.names and options.names[0] in ("report", "publish", "gpu"):
        options.action = options.names.pop(0)
    for name in options.names:
        if name not in (*BENCHMARKS, "all"):
            parser.error(f"no benchmark {name!r}: choose from all, {', '.join(BENCHMARKS)}; or report, publish, gpu.")
    if options.action == "report" and options.names:
        parser.error(f"report shows all results of a folder: leave out {', '.join(options.names)}.")
    if options.action == "gpu" and (options.names or options.json or options.rounds):
        parser.error("gpu decides for itself what to run and prints no JSON: leave out all but --quick and --out.")
    if options.action in ("report", "publish") and options.dry_run:
        parser.error(f"{options.action} measures nothing: leave out --dry-run.")
    if options.force and options.action != "publish":
        parser.error("--force is only for publish: leave it out.")
    wanted = options.names or (["all"] if options.action == "measure" else [])
    expanded = [one for name in wanted for one in (MAIN if name == "all" else (name,))]
    options.names = list(dict.fromkeys(expanded))
    if options.rounds is None:
        options.rounds = DRY_ROUNDS if options.dry_run else QUICK_ROUNDS if options.quick else ROUNDS
    if options.rounds < 2:
        parser.error(f"--rounds is {options.rounds}: medians need at least 2.")
    if options.out is None:
        options.out = places.MINE / ("dry" if options.dry_run else "gpu" if options.action == "gpu" else "")
    if options.out.resolve() == places.PUBLISHED.resolve():
        parser.error(f"--out is {options.out}, which only publish writes: choose another folder.")
    if options.action == "gpu" and not options.dry_run and (absent := gpu.missing()):
        parser.exit(1, f"python -m bench: {absent}\n")
    if options.action in ("measure", "report", "gpu"):
        make_folder(options.out, parser)  # before measuring for minutes
    return options


def make_folder(folder: Path, parser: argparse.ArgumentParser) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot write results to {folder} ({error.strerror}): pass another folder with --out.")
    if not os.access(folder, os.W_OK):
        parser.error(f"cannot write results to {folder} (no permission): pass another folder with --out.")


if __name__ == "__main__":
    sys.exit(main())
