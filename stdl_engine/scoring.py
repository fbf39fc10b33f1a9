"""How good a network is on labelled samples, and how much each of its units fires meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from .building import placed
from .data import Batches
from .recipes import Recipe
from .rules.base import PRECISIONS
from .rules.batch import split_frames
from .rules.inference import mean_logits
from .units import label_of

RATES_FROM = 4
"""Batches, spread over the whole set, on which firing rates are measured: they change little from one to another."""


@dataclass(frozen=True)
class Score:
    """What a set of samples says of a network.

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
def score(model: nn.Sequential, batches: Batches, recipe: Recipe, device: torch.device) -> Score:
    """Run the plain network over a set in evaluation mode, in the recipe's precision; the model is given back as it
    was."""
    correct = samples = 0
    loss = torch.zeros((), dtype=torch.float64)
    dtype = PRECISIONS[recipe.precision]
    rates = torch.zeros(len(model) - 1, device=device)
    measured = {round(number * len(batches) / RATES_FROM) for number in range(RATES_FROM)}
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        for number, (x, y) in enumerate(batches.epoch(0)):
            frames = split_frames(placed(recipe, x, device), recipe.steps, recipe.in_shape)
            logits = mean_logits(model, frames, rates if number in measured else None).float().cpu()
            correct += int((logits.argmax(1) == y).sum())
            loss += cross_entropy(logits, y, reduction="sum").double()
            samples += len(y)
    names = [f"{number} {label_of(unit)}" for number, unit in enumerate(model[:-1], 1)]
    seen = len([number for number in measured if number < len(batches)])
    by_unit = dict(zip(names, (rates / max(seen, 1)).tolist(), strict=True))
    return Score(correct / max(samples, 1), loss.item() / max(samples, 1), samples, by_unit)
