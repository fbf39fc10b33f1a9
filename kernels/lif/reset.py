"""The reset as a step of its own, for the plain form that keeps the membrane after reset as its state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable, saved_tensors
from ..surrogate import Surrogate


def lif_reset(
    m: Tensor, threshold: float, *, reset: str, reset_value: float, detach_reset: bool, surrogate: Surrogate
) -> Tensor:
    """u = reset(m): the membrane after the neurons that reached the threshold were reset."""
    return m if reset == "none" else Reset.call(m, threshold, reset, reset_value, detach_reset, surrogate)


class Reset(Differentiable):
    """u = reset(m), whose gradient keeps m alone, and nothing where the reset has no part in it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        m: Tensor, threshold: float, reset: str, reset_value: float, detach_reset: bool, surrogate: Surrogate
    ) -> Tensor:
        return torch.where(m >= threshold, m - threshold if reset == "soft" else reset_value, m)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        m, *ctx.options = inputs
        _, reset, _, detach_reset, _ = ctx.options
        if reset == "hard" or not detach_reset:
            ctx.save_for_backward(m)
            ctx.save_for_forward(m)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return Reset.gradient(ctx, grad), None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return Reset.gradient(ctx, tangent)

    @staticmethod
    def gradient(ctx: Any, grad: Tensor) -> Tensor:
        """The gradient of m from that of u; the same factor takes a tangent from m to u."""
        threshold, reset, reset_value, detach_reset, surrogate = ctx.options
        if saved := saved_tensors(ctx, "the LIF neuron"):
            (m,) = saved
            past = torch.where(m >= threshold, 0.0, grad) if reset == "hard" else grad
            if not detach_reset:
                jump = -threshold if reset == "soft" else torch.where(m.isfinite(), reset_value - m, 0.0)
                past = past + (grad * jump) * surrogate(m - threshold)
            return past
        return grad
