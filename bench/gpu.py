"""`python -m bench gpu`: all tests and benchmarks of a GPU, and one page to send back.

Every part is a command in its own process, so that one that fails or dies does not stop the others. The whole page is
rewritten after each part: it says what was run, what failed and why, and what has not been run yet. A dry run goes
through all of it on any machine, at sizes whose figures mean nothing: Triton's kernels are compiled ahead of time and
run in its interpreter, everything else runs on the CPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import torch
from rich.console import Console

from .gpu_page import DOCTOR, MEASURED, TESTS, Part, count_kernels, count_rows, count_tests, write
from .places import BENCH

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""The targets that `stdl_engine.kernels.inspect` compiles for."""
LIMIT = 3 * 3600
"""Seconds that a part may take."""
PATIENCE = 10
"""Seconds that it has to end after it was told to."""


def missing() -> str:
    """Why nothing can be measured here; empty if there is a GPU."""
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None and torch.version.hip is None:
        why = f"torch {torch.__version__} is built without CUDA or ROCm: install one with (pytorch.org says how)"
    else:
        why = "torch finds none: see whether nvidia-smi or rocm-smi does"
    return f"there is no GPU to measure, {why}; or go through it all without one by `make gpu DRY=1`."


def parts(folder: Path, *, quick: bool = False, dry: bool = False) -> list[Part]:
    """What is run, in this order: the quick and informative parts first."""
    mode = ["--dry-run"] if dry else ["--quick"] if quick else []
    pytest = ["-m", "pytest", "-m", "gpu", "tests", "-p", "no:cacheprovider", f"--junitxml={folder / TESTS}"]
    workers = ["--numprocesses", "auto", "--maxprocesses", "4", "--dist", "worksteal"]
    inspect = ["-m", "stdl_engine.kernels.inspect", "--json", "--target"]
    return [
        Part(DOCTOR, ["-m", "stdl_engine.doctor"], is_kept=True),
        Part("tests", [*pytest, *workers], about=lambda part: count_tests(folder)),
        *(Part(f"compile for {one}", [*inspect, one], is_kept=True, about=count_kernels) for one in TARGETS),
        *(
            Part(name, ["-m", "bench", name, *mode, "--out", str(folder)], about=lambda part: count_rows(folder, part))
            for name in MEASURED
        ),
    ]


def run(folder: Path, *, quick: bool, dry: bool, console: Console) -> int:
    """Run all parts and write the page after each; returns 1 if one failed."""
    folder = folder.resolve()  # the parts run in other folders
    todo = parts(folder, quick=quick, dry=dry)
    (folder / TESTS).unlink(missing_ok=True)  # from an earlier run
    write(folder, todo, dry)
    for number, part in enumerate(todo, start=1):
        console.rule(f"{number} of {len(todo)}: {part.name}", align="left")
        try:
            execute(part)
        except KeyboardInterrupt:
            part.code = "interrupted"
            write(folder, todo, dry)
            return 130
        write(folder, todo, dry)
        said = [part.outcome, f"{part.seconds:.0f} s", part.about(part)]
        console.print(f"{part.name}: {', '.join(filter(None, said))}", highlight=False)
    return int(any(part.code != 0 for part in todo))


def execute(part: Part) -> None:
    """Run a part and fill in its outcome; its errors also go to the terminal."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *part.arguments], cwd=BENCH.parent, env=environment, text=True, errors="replace",
        stdout=subprocess.PIPE if part.is_kept else None, stderr=subprocess.PIPE,
    )  # fmt: skip
    streams = [(process.stderr, part.errors, sys.stderr), (process.stdout, part.output, None)][: 1 + part.is_kept]
    copiers = [threading.Thread(target=copy, args=stream, daemon=True) for stream in streams]
    for copier in copiers:
        copier.start()
    try:
        part.code = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        part.code = f"stopped after {LIMIT} seconds"
    finally:
        stop(process)
        for copier in copiers:
            copier.join(timeout=10)
        part.seconds = time.perf_counter() - start


def stop(process: subprocess.Popen) -> None:
    """Make sure that a process ends. A terminal's interrupt reaches it anyway; otherwise it is sent one, so that it can
    end what it has started. It is killed only if it does not react."""
    for ask in (signal.SIGINT, signal.SIGKILL):
        try:
            process.wait(PATIENCE)
            return
        except subprocess.TimeoutExpired:
            process.send_signal(ask)
    process.wait()


def copy(source: IO[str], kept: list[str], target: IO[str] | None) -> None:
    """Keep lines as they arrive, and pass them on."""
    for line in source:
        kept.append(line.rstrip("\n"))
        if target is not None:
            target.write(line)
            target.flush()
