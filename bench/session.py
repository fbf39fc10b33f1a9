"""What a benchmark is given: a clock with a progress bar, and a place for its figures."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import Progress

from .results import Row
from .timing import Case, interleave, spread


class Session:
    """One run of one benchmark."""

    def __init__(self, benchmark: str, rounds: int, progress: Progress | None = None) -> None:
        self.benchmark, self.rounds, self.progress = benchmark, rounds, progress
        self.rows: list[Row] = []
        self.notes: list[str] = []

    def time(self, what: str, cases: dict[str, Case], *, calls: int = 1) -> dict[str, list[float]]:
        """Seconds of each case, one sample a round, the cases interleaved."""
        if self.progress is None:
            return interleave(cases, self.rounds, calls=calls)
        task = self.progress.add_task(f"{self.benchmark}: {what}", total=self.rounds)
        times = interleave(cases, self.rounds, calls=calls, tick=lambda: self.progress.advance(task))
        self.progress.remove_task(task)
        return times

    def record(
        self,
        case: str,
        unit: str,
        samples: Sequence[float] | float,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Keep a figure: one value a round, or a single value; and the bound its median should keep."""
        samples = [samples] if isinstance(samples, int | float) else list(samples)
        target = f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}" if at_most is not None else ""
        self.rows.append(Row(self.benchmark, case, unit, spread(samples), len(samples), target))

    def show(self, what: str) -> None:
        """Say what is going on when nothing is being timed here."""
        if self.progress is not None:
            self.progress.console.print(f"{self.benchmark}: {what}", style="dim", highlight=False)

    def note(self, text: str) -> None:
        """Say something about the figures, below the table."""
        self.notes.append(text)
