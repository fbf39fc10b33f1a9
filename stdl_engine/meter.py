"""What an epoch of training has seen so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Meter:
    """Sums over the batches of an epoch; part of a checkpoint, so a resumed epoch reports all of itself."""

    losses: list[float] = field(default_factory=list)
    """Of each subnetwork, times samples."""
    correct: int = 0
    samples: int = 0
    seconds: float = 0.0

    def add(self, losses: Sequence[float], correct: int, samples: int, seconds: float) -> None:
        """One batch more."""
        before = self.losses or [0.0] * len(losses)
        self.losses = [total + loss * samples for total, loss in zip(before, losses, strict=True)]
        self.correct += correct
        self.samples += samples
        self.seconds += seconds

    @property
    def summary(self) -> dict[str, Any]:
        """The epoch so far, in means; `train_loss` is that of the network's own classifier, the last."""
        losses = [loss / self.samples for loss in self.losses] or [0.0]
        return {
            "train_loss": losses[-1],
            "subnetwork_losses": losses,
            "train_accuracy": self.correct / max(self.samples, 1),
            "samples": self.samples,
            "train_seconds": self.seconds,
            "samples_per_second": self.samples / self.seconds if self.seconds else 0.0,
        }
