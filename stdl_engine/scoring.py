"""How well a network does on labelled samples, and how much each of its units fires meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .building import placed
from .data import Batches
from .recipes import Recipe
from .rules.base import PRECISIONS
from .rules.batch import split_frames
from .rules.inference import mean_logits
from .units import label_of

RATES_FROM = 4
"""The number of batches, spread over the whole set, on which firing rates are measured: rates vary little."""


@dataclass(frozen=True)
class Score:
    """The results of a network on a set of samples.

    Attributes:
        accuracy: the share of samples whose label has the largest logit.
        loss: cross-entropy of the logits, which are the mean over time steps, averaged over samples.
        samples: how many there were.
        firing_rates: mean output of each unit, in spikes per neuron and time step, by number and name of the unit.
    """

    accuracy: float
    loss: float
    samples: int
    firing_rates: dict[str, float]


@torch.no_grad()
def score(model: nn.Sequential, batches: Batches, recipe: Recipe, device: torch.device, *, chunk: int = 1) -> Score:
    """Run the plain network over a set in evaluation mode, in the recipe's precision, and so many time steps together;
    the model is left as it was."""
    tally, dtype = Tally(model, batches, device), PRECISIONS[recipe.precision]
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        for number, (x, y) in enumerate(batches.epoch(0)):
            frames = split_frames(placed(recipe, x, device), recipe.steps, recipe.in_shape)
            tally.add(mean_logits(model, frames, tally.rates_for(number), chunk=chunk), y)
    return tally.score()


class Tally:
    """Sums over the part of a set that has been seen so far."""

    def __init__(self, model: nn.Sequential, batches: Batches, device: torch.device) -> None:
        self.names = [f"{number} {label_of(unit)}" for number, unit in enumerate(model[:-1], 1)]
        self.rates = torch.zeros(len(self.names), device=device)
        wanted = {round(number * len(batches) / RATES_FROM) for number in range(RATES_FROM)}
        self.measured = {number for number in wanted if number < len(batches)}
        self.totals = torch.zeros(3, dtype=torch.float64)
        """Correct answers, loss and number of samples."""

    def rates_for(self, number: int) -> Tensor | None:
        """Where to add up the firing rates of this batch, if they are measured on it."""
        return self.rates if number in self.measured else None

    def add(self, logits: Tensor, y: Tensor) -> None:
        """One batch more."""
        logits, y = logits.float().cpu(), y.cpu()
        loss = cross_entropy(logits, y, reduction="sum").item()
        self.totals += torch.tensor([(logits.argmax(1) == y).sum().item(), loss, len(y)], dtype=torch.float64)

    def score(self) -> Score:
        """The final score."""
        correct, loss, samples = self.totals.tolist()
        rates = (self.rates / max(len(self.measured), 1)).tolist()
        by_unit = dict(zip(self.names, rates, strict=True))
        return Score(correct / max(samples, 1), loss / max(samples, 1), int(samples), by_unit)
