"""Prediction with the plain network: no auxiliary networks, no gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..memory.still import showing
from ..neurons import borrowed
from .still import first_convolution, still_image


@torch.no_grad()
def mean_logits(model: nn.Sequential, frames: list[Tensor], rates: Tensor | None = None) -> Tensor:
    """The logits of a model in evaluation mode, averaged over the frames in time; the model is left as it was.

    To `rates`, one number for each unit, the unit's mean output is added, which is its firing rate.
    """
    image = still_image(frames)
    shown = contextlib.nullcontext() if image is None else showing(image, first_convolution(model[0]))
    total: Tensor | float = 0.0
    with borrowed(model.modules(), training=False, online=True, memory="lean"), shown:
        for frame in frames:
            if rates is None:
                total = total + model(frame)
            else:
                total = total + model[-1](measured(model[:-1], frame, rates, 1 / len(frames)))
    return torch.as_tensor(total) / len(frames)


def measured(units: Iterable[nn.Module], x: Tensor, rates: Tensor | None, weight: float) -> Tensor:
    """The output of a sequence of units; to `rates`, if given, each unit's mean output times `weight` is added."""
    for number, unit in enumerate(units):
        x = unit(x)
        if rates is not None:
            rates[number] += weight * x.mean(dtype=torch.float32)
    return x
