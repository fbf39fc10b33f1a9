"""The page that `python -m bench gpu` writes: how each part went, what failed and why, the machine, and the figures."""

from __future__ import annotations

import itertools
import json
import signal
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from stdl_engine.atomic_files import write_atomically

from . import report
from .markdown import table
from .results import Run, runs
from .session import FAILS

PAGE, TESTS = "gpu.md", "gpu_tests.xml"
DOCTOR = "doctor"
MEASURED = ("yardstick", "training", "kernels")
LINES = 30
"""How much of what a failed part printed is shown."""
SHOWN_TESTS = 50


@dataclass
class Part:
    """A command and its outcome."""

    name: str
    arguments: Sequence[str]
    """Of Python."""
    is_kept: bool = False
    """Whether what it prints is for the page, and not for the terminal."""
    about: Callable[[Part], str] = lambda part: ""
    """How it went, in a few words."""
    seconds: float = 0.0
    code: int | str | None = None
    """Its exit code, or why there is none; None before it has run."""
    output: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        """What to type to run it, without the files it writes."""
        return " ".join(["python", *itertools.takewhile(lambda one: one not in ("--out", "-p"), self.arguments)])

    @property
    def outcome(self) -> str:
        if self.code is None:
            return "not run"
        if isinstance(self.code, str):
            return self.code
        if self.code == 0:
            return "done"
        return f"failed with {f'exit code {self.code}' if self.code > 0 else signal.Signals(-self.code).name}"


def write(folder: Path, done: Sequence[Part], dry: bool) -> None:
    """The page as of now."""
    shown = {part.name: last_run(folder, part.name) for part in done if part.name in MEASURED and part.code == 0}
    opening = "\n\n".join([*heading(done, dry), *failures(done), *tests(folder), *machine(done)])
    page = report.Page(folder / PAGE, folder, opening, shown, published={}, expected=())
    write_atomically(page.path, report.document(page, plots=()) if shown else f"{opening}\n")


def heading(done: Sequence[Part], dry: bool) -> list[str]:
    """The heading, and how each part went."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "a machine without a GPU"
    what = "Written by `make gpu`. Please send it back as an issue of the project, with the CSV files beside it."
    if dry:
        what = "**A dry run: everything was run at tiny sizes, and no figure means anything.**"
    lines = [
        (
            part.name,
            f"`{part.command}`",
            part.outcome if part.code in (0, None) else f"**{part.outcome}**",
            f"{part.seconds:.0f}",
            part.about(part),
        )
        for part in done
    ]
    return [f"# stdl-engine on {name}", what, table(("part", "command", "outcome", "seconds", ""), lines)]


def failures(done: Sequence[Part]) -> list[str]:
    """The last lines that failed parts printed."""
    written = []
    for part in (part for part in done if part.code not in (0, None)):
        lines = [*part.output[-LINES:], *part.errors[-LINES:]]
        written += [f"## {part.name} {part.outcome}", fenced(lines) if lines else "It wrote nothing about it."]
    return written


def tests(folder: Path) -> list[str]:
    """The tests that failed, and why others were skipped."""
    cases, parts = test_cases(folder), []
    bad = [(case, found) for case in cases for kind in ("failure", "error") if (found := case.find(kind)) is not None]
    if bad:
        names = [f"`{case.get('classname')}::{case.get('name')}`" for case, _ in bad[:SHOWN_TESTS]]
        reasons = [first_line(found) for _, found in bad[:SHOWN_TESTS]]
        parts += ["## Tests that failed", table(("test", "why"), zip(names, reasons, strict=True))]
    if len(bad) > SHOWN_TESTS:
        parts.append(f"{len(bad) - SHOWN_TESTS} more are in {TESTS}.")
    skipped = Counter(first_line(found) for case in cases if (found := case.find("skipped")) is not None)
    if skipped:
        parts.append(f"Skipped tests: {'; '.join(f'{count} × {why}' for why, count in skipped.items())}.")
    return parts


def machine(done: Sequence[Part]) -> list[str]:
    """The doctor's report: versions, GPU, driver, Triton's target, and how the kernels compare with the reference."""
    said = [line for part in done if part.name == DOCTOR for line in part.output]
    return ["## The machine", fenced(said)] if said else []


def fenced(lines: Sequence[str]) -> str:
    return "\n".join(["```text", *lines, "```"])


def last_run(folder: Path, name: str) -> Run:
    return runs(folder / f"{name}.csv")[-1]


def test_cases(folder: Path) -> list[ElementTree.Element]:
    """The tests in the file that pytest wrote; none if it wrote no file."""
    path = folder / TESTS
    return list(ElementTree.parse(path).iter("testcase")) if path.exists() else []


def first_line(found: ElementTree.Element) -> str:
    return (found.get("message") or found.text or "").strip().partition("\n")[0]


def count_tests(folder: Path) -> str:
    """How many tests passed, failed and were skipped."""
    cases = test_cases(folder)
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    return f"{len(cases) - failed - skipped} passed, {failed} failed, {skipped} skipped" if cases else ""


def count_kernels(part: Part) -> str:
    """How many kernels were compiled, and whether all values stay in registers."""
    if part.code != 0:
        return ""
    found = json.loads("\n".join(part.output))
    registers, spills = (max(kernel[name] for kernel in found) for name in ("registers", "spills"))
    return f"{len(found)} kernels, at most {registers} registers and {spills} spilled bytes per thread"


def count_rows(folder: Path, part: Part) -> str:
    """How many figures there are, and how many are missing because of an error."""
    if part.code != 0:
        return ""
    rows = last_run(folder, part.name).rows
    failed = sum(row.spread is None and row.note.startswith(FAILS) for row in rows)
    return f"{sum(row.spread is not None for row in rows)} figures" + (f", {failed} failed" if failed else "")
