"""The progress bar of an epoch: batches, loss, accuracy, speed and memory."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .planning.budgets import format_bytes


class EpochBar:
    """Shown while an epoch runs, on a terminal only."""

    def __init__(self, console: Console, what: str, batches: int, done: int) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self.progress = Progress(
            *columns,
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task(what, total=batches, completed=done, figures="")

    def show(self, figures: dict[str, float], peak_bytes: int) -> None:
        """One batch more."""
        text = (
            f"loss {figures['train_loss']:.3f}  {figures['train_accuracy']:.1%}  "
            f"{figures['samples_per_second']:.0f} samples/s"
        )
        text += f"  peak {format_bytes(peak_bytes)}" if peak_bytes else ""
        self.progress.update(self.task, advance=1, figures=text)

    def __enter__(self) -> EpochBar:
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()
