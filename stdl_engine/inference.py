"""The plain network at work: no auxiliary networks, no gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .neurons import reset_states


@torch.no_grad()
def mean_logits(model: nn.Module, frames: list[Tensor]) -> Tensor:
    """What a model in evaluation mode says of a batch, the mean over its frames in time; training mode comes back."""
    was_training = model.training
    model.eval()
    reset_states(model)
    try:
        return sum(model(frame) for frame in frames) / len(frames)
    finally:
        reset_states(model)
        model.train(was_training)
