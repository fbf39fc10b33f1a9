"""Reset and adaptation as a separate step, for the plain form, which keeps the membrane after reset as its state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable, saved_tensors
from ..surrogate import Surrogate


def alif_reset(
    m: Tensor, adaptation: Tensor, threshold: float, *, beta: float, rho: float, detach_reset: bool,
    surrogate: Surrogate,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The membrane after the neurons that fired were reset, and the adaptation of the next step."""
    return Reset.call(m, adaptation, threshold, beta, rho, detach_reset, surrogate)


class Reset(Differentiable):
    """u = m - level · s;  b = rho · b' + (1 - rho) · s, where s = m >= level, and level = threshold + beta · b'."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        m: Tensor,
        adaptation: Tensor,
        threshold: float,
        beta: float,
        rho: float,
        detach_reset: bool,
        surrogate: Surrogate,
    ) -> tuple[Tensor, Tensor]:
        level = threshold + beta * adaptation
        fired = m >= level
        u = torch.where(fired, m - level, m)
        return u, (rho * adaptation).add_(fired.to(m.dtype).mul_(1 - rho))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        m, adaptation, *ctx.options = inputs
        ctx.save_for_backward(m, adaptation)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_u: Tensor | None, grad_next: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients as the fused kernel computes them, in the same order of operations."""
        m, adaptation = saved_tensors(ctx, "the ALIF neuron")
        threshold, beta, rho, detach_reset, surrogate = ctx.options
        grad_u = torch.zeros_like(m) if grad_u is None else grad_u
        grad_next = torch.zeros_like(m) if grad_next is None else grad_next
        level = threshold + beta * adaptation
        grad_fired = (1 - rho) * grad_next
        if not detach_reset:
            grad_fired = grad_fired - grad_u * level
        to_membrane = grad_fired * surrogate(m - level)
        grad_level = -to_membrane if detach_reset else torch.where(m >= level, -grad_u, 0.0) - to_membrane
        return grad_u + to_membrane, rho * grad_next + beta * grad_level, None, None, None, None, None
