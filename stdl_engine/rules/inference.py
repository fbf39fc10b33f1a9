"""Prediction with the plain network: no auxiliary networks, no gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ..memory.chunks import in_chunks
from ..memory.norms import lean_norms
from ..memory.spikes import restore
from ..memory.still import showing
from ..neurons import borrowed, has_hooks
from ..planning.flow import Flow
from ..planning.subnetworks import Subnetwork
from .still import first_convolution, still_image


@torch.no_grad()
def mean_logits(model: nn.Sequential, frames: list[Tensor], rates: Tensor | None = None, *, chunk: int = 1) -> Tensor:
    """The logits of a model in evaluation mode, averaged over the frames in time; the model is left as it was.

    To `rates`, one number for each unit, the unit's mean output is added, which is its firing rate. As many time steps
    as make a `chunk` run together.
    """
    *units, head = model
    by_itself = has_hooks(model) or type(model).forward is not nn.Sequential.forward
    flow = Flow(Subnetwork(nn.Sequential(*units), head, is_last=True), lean=True)
    chunks, samples = in_chunks(frames, chunk), len(frames[0])
    image = still_image(chunks)
    shown = contextlib.nullcontext() if image is None else showing(image, first_convolution(model[0]))
    total: Tensor | float = 0.0
    with shown, evaluating(model.modules(), samples if chunk > 1 else None):
        for x in chunks:
            if rates is not None:
                logits = head(measured(units, restore(x), rates, samples * len(frames)))
            elif by_itself:
                logits = model(restore(x))
            else:
                logits = flow.run(x)[1]
            total = total + over_time(logits, samples)
    return torch.as_tensor(total) / len(frames)


@contextlib.contextmanager
def evaluating(modules: Iterable[nn.Module], samples: int | None = None) -> Iterator[None]:
    """Inside, layers are in evaluation mode and take one time step per call, or several of so many samples each, in as
    little time and memory as they can. Afterwards they are as they were."""
    modules = list(modules)
    borrowing = borrowed(modules, training=False, online=True, memory="lean", samples=samples)
    with borrowing, lean_norms(modules, samples):
        yield


def over_time(logits: Tensor, samples: int) -> Tensor:
    """The sum of a chunk's logits over its time steps."""
    return logits if len(logits) == samples else logits.unflatten(0, (-1, samples)).sum(0)


def measured(units: Iterable[nn.Module], x: Tensor, rates: Tensor | None, images: int) -> Tensor:
    """The output of a sequence of units. To `rates`, if given, the part that x, some of so many images, has in each
    unit's mean output is added."""
    part = len(x) / images
    for number, unit in enumerate(units):
        x = unit(x)
        if rates is not None:
            rates[number] += part * x.mean(dtype=torch.float32)
    return x
