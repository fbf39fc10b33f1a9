"""The plain network at work: no auxiliary networks, no gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ..neurons import borrowed


@torch.no_grad()
def mean_logits(model: nn.Module, frames: list[Tensor]) -> Tensor:
    """What a model in evaluation mode says of a batch, the mean over its frames in time; the model is given back as it
    was."""
    with borrowed(model.modules(), training=False, online=True, memory="lean"):
        return sum(model(frame) for frame in frames) / len(frames)


def accuracy(predict: Callable[[Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, int]:
    """The share of samples whose label has the largest of `predict`'s logits, and how many samples there were."""
    correct = samples = 0
    for x, y in batches:
        correct += (predict(x).argmax(1).cpu() == y).sum().item()
        samples += len(y)
    return correct / samples, samples
