"""What an epoch of training has seen so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Meter:
    """Sums over the batches of an epoch; part of a checkpoint, so that a resumed epoch reports the whole epoch."""

    losses: list[float] = field(default_factory=list)
    """The loss of each subnetwork, times samples."""
    correct: int = 0
    samples: int = 0
    seconds: float = 0.0
    steady_samples: int = 0
    """Samples of the batches that count for speed."""
    steady_seconds: float = 0.0

    def add(self, losses: Sequence[float], correct: int, samples: int, seconds: float, steady: bool = True) -> None:
        """Add one batch; it is not `steady` if kernels were compiled or memory was measured meanwhile."""
        before = self.losses or [0.0] * len(losses)
        self.losses = [total + loss * samples for total, loss in zip(before, losses, strict=True)]
        self.correct += correct
        self.samples += samples
        self.seconds += seconds
        if steady:
            self.steady_samples += samples
            self.steady_seconds += seconds

    @property
    def summary(self) -> dict[str, Any]:
        """Means over the epoch so far; `train_loss` is that of the network's own classifier, the last one."""
        losses = [loss / self.samples for loss in self.losses] or [0.0]
        figures = {
            "train_loss": losses[-1],
            "subnetwork_losses": losses,
            "train_accuracy": self.correct / max(self.samples, 1),
            "samples": self.samples,
            "train_seconds": self.seconds,
            "steady_samples": self.steady_samples,
            "steady_seconds": self.steady_seconds,
        }
        return figures | {"samples_per_second": speed([figures])}


def speed(rows: Sequence[Mapping[str, Any]]) -> float:
    """Samples per second of the batches that count for speed, or of all batches if there are none."""
    for samples, seconds in (("steady_samples", "steady_seconds"), ("samples", "train_seconds")):
        if total := sum(row[seconds] for row in rows):
            return sum(row[samples] for row in rows) / total
    return 0.0
