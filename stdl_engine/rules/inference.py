"""Prediction with the plain network: no auxiliary networks, no gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ..memory.norms import lean_norms
from ..memory.still import showing
from ..neurons import borrowed
from ..planning.flow import Flow
from ..planning.subnetworks import Subnetwork
from .still import first_convolution, still_image


@torch.no_grad()
def mean_logits(model: nn.Sequential, frames: list[Tensor], rates: Tensor | None = None) -> Tensor:
    """The logits of a model in evaluation mode, averaged over the frames in time; the model is left as it was.

    To `rates`, one number for each unit, the unit's mean output is added, which is its firing rate.
    """
    *units, head = model
    flow = Flow(Subnetwork(nn.Sequential(*units), head, is_last=True), lean=True)
    image = still_image(frames)
    shown = contextlib.nullcontext() if image is None else showing(image, first_convolution(model[0]))
    total: Tensor | float = 0.0
    with shown, evaluating(model.modules()):
        for frame in frames:
            if rates is None:
                total = total + flow.run(frame)[1]
            else:
                total = total + head(measured(units, frame, rates, 1 / len(frames)))
    return torch.as_tensor(total) / len(frames)


@contextlib.contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, layers are in evaluation mode and take one time step per call, in as little time and memory as they can.
    Afterwards they are as they were."""
    modules = list(modules)
    with borrowed(modules, training=False, online=True, memory="lean"), lean_norms(modules, None):
        yield


def measured(units: Iterable[nn.Module], x: Tensor, rates: Tensor | None, weight: float) -> Tensor:
    """The output of a sequence of units; to `rates`, if given, each unit's mean output times `weight` is added."""
    for number, unit in enumerate(units):
        x = unit(x)
        if rates is not None:
            rates[number] += weight * x.mean(dtype=torch.float32)
    return x
