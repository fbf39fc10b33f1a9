"""What a benchmark is given: a clock with a progress bar, and a place for its figures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from rich.progress import Progress

from .results import Row
from .timing import Case, interleave, spread

Sizes = TypeVar("Sizes")
"""The type of a benchmark's sizes."""
OUT_OF_MEMORY, FAILS = "out of memory", "fails"
"""How the note of a row without a figure begins: because a GPU is too small, or because of an error."""


class Session:
    """One run of one benchmark.

    Attributes:
        quick: whether to leave out what takes long; each benchmark decides what.
        dry: whether only to exercise the code, at sizes whose figures mean nothing.
        rounds: interleaved rounds of every timing.
        device: "cuda" where there is one, else "cpu".
        rows, notes: what was found.
        files: other files to keep beside the results, by name, such as a profile.
    """

    def __init__(
        self,
        benchmark: str,
        rounds: int,
        progress: Progress | None = None,
        *,
        quick: bool = False,
        dry: bool = False,
        device: str | None = None,
    ) -> None:
        self.benchmark, self.rounds, self.progress = benchmark, rounds, progress
        self.quick, self.dry = quick, dry
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.files: dict[str, str] = {}

    def sizes(self, full: Sizes, quick: Sizes, dry: Sizes) -> Sizes:
        """The sizes for this run."""
        return dry if self.dry else quick if self.quick else full

    def time(
        self, what: str, cases: dict[str, Case], *, calls: int = 1, warmup: int = 2, rounds: int | None = None
    ) -> dict[str, list[float]]:
        """Seconds of each case, one sample per round, with the cases interleaved."""
        rounds = rounds or self.rounds
        options = {"calls": calls, "warmup": warmup, "device": self.device}
        if self.progress is None:
            return interleave(cases, rounds, **options)
        task = self.progress.add_task(f"{self.benchmark}: {what}", total=rounds)
        times = interleave(cases, rounds, tick=lambda: self.progress.advance(task), **options)
        self.progress.remove_task(task)
        return times

    def record(
        self,
        what: str,
        unit: str,
        samples: Sequence[float] | float,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        **fields: str,
    ) -> None:
        """Keep a figure: one value per round, or a single value; and the bound that its median should keep to.

        `fields` are the other texts of a `Row`: who, against, shape, dtype, note.
        """
        samples = [samples] if isinstance(samples, int | float) else list(samples)
        target = f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}" if at_most is not None else ""
        figure = {"spread": spread(samples), "rounds": len(samples), "target": target}
        self.rows.append(Row(benchmark=self.benchmark, what=what, unit=unit, **figure, **fields))

    def refuse(self, what: str, unit: str, reason: str, **fields: str) -> None:
        """Record why there is no figure: "differs", "not installed"."""
        self.rows.append(Row(benchmark=self.benchmark, what=what, unit=unit, spread=None, note=reason, **fields))

    @contextlib.contextmanager
    def attempt(self, what: str, unit: str, **fields: str) -> Iterator[None]:
        """On a GPU, what fails or does not fit into memory is recorded with the reason, and the rest continues."""
        try:
            yield
        except Exception as error:  # a driver or a compiler may raise anything
            if self.device != "cuda":
                raise
            self.refuse(what, unit, failure(error), **fields)

    def show(self, what: str) -> None:
        """Show what is going on while nothing is being timed."""
        if self.progress is not None:
            self.progress.console.print(f"{self.benchmark}: {what}", style="dim", highlight=False)

    def note(self, text: str) -> None:
        """Add a remark about the figures, below the table."""
        self.notes.append(text)

    def keep(self, name: str, content: str) -> None:
        """Keep a file beside the results, with the benchmark's name as a prefix."""
        self.files[f"{self.benchmark}_{name}"] = content


def failure(error: Exception) -> str:
    """Why there is no figure, in one line."""
    if isinstance(error, torch.OutOfMemoryError):
        return OUT_OF_MEMORY
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{FAILS}: {type(error).__name__}{': ' + lines[0] if lines else ''}"
