"""The reset as a step of its own, for the plain form that keeps the membrane after reset as its state."""

from __future__ import annotations

import torch
from torch import Tensor

from ..surrogate import Surrogate


def lif_reset(
    m: Tensor, threshold: float, *, reset: str, reset_value: float, detach_reset: bool, surrogate: Surrogate
) -> Tensor:
    """u = reset(m): the membrane after the neurons that reached the threshold were reset."""
    return m if reset == "none" else _Reset.apply(m, threshold, reset, reset_value, detach_reset, surrogate)


class _Reset(torch.autograd.Function):
    @staticmethod
    def forward(ctx, m, threshold, reset, reset_value, detach_reset, surrogate):
        ctx.save_for_backward(*(() if reset == "soft" and detach_reset else (m,)))
        ctx.options = threshold, reset, reset_value, detach_reset, surrogate
        return torch.where(m >= threshold, m - threshold if reset == "soft" else reset_value, m)

    @staticmethod
    def backward(ctx, grad):
        threshold, reset, reset_value, detach_reset, surrogate = ctx.options
        grad_m = grad
        if ctx.saved_tensors:
            (m,) = ctx.saved_tensors
            if reset == "hard":
                grad_m = torch.where(m >= threshold, 0.0, grad)
            if not detach_reset:
                jump = -threshold if reset == "soft" else torch.where(m.isfinite(), reset_value - m, 0.0)
                grad_m = grad_m + (grad * jump) * surrogate(m - threshold)
        return grad_m, None, None, None, None, None
