"""The LIF step in plain PyTorch: what every other backend is measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..operators import Differentiable
from ..surrogate import Triangle


class Spike(Differentiable):
    """1 where d >= 0, else 0; its gradient is the surrogate's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(d: Tensor, surrogate: Callable[[Tensor], Tensor]) -> Tensor:
        return (d >= 0).to(d.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        d, ctx.surrogate = inputs
        ctx.save_for_backward(d)
        ctx.save_for_forward(d)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (d,) = ctx.saved_tensors
        return grad * ctx.surrogate(d), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        (d,) = ctx.saved_tensors
        return tangent * ctx.surrogate(d)


_Compiled = Spike.compiled


def fire(d: Tensor, surrogate: Callable[[Tensor], Tensor]) -> Tensor:
    """1 where d >= 0, else 0, with the surrogate's gradient."""
    return _Compiled.apply(d, surrogate) if torch.compiler.is_compiling() else Spike.call(d, surrogate)


def lif_step(
    x: Tensor,
    m_prev: Tensor,
    decay: float | Tensor = 0.1,
    threshold: float = 1.0,
    *,
    reset: str = "soft",
    reset_value: float = 0.0,
    detach_reset: bool = False,
    scale: float | Tensor = 1.0,
    surrogate: Callable[[Tensor], Tensor] = Triangle(),  # noqa: B008 - immutable
) -> tuple[Tensor, Tensor]:
    """One step: m = decay · reset(m_prev) + scale · x, spikes = m >= threshold; returns (spikes, m). See README.md."""
    fired = fire(m_prev - threshold, surrogate)
    if detach_reset:
        fired = fired.detach()
    if reset == "soft":
        u = m_prev - threshold * fired
    elif reset == "hard":
        u = torch.where(fired.detach() > 0, reset_value, m_prev)
        # Worth exactly 0, it carries the gradient d u / d fired, which is none where the membrane is not finite.
        jump = torch.where(m_prev.isfinite(), reset_value - m_prev, 0.0).detach()
        u = u + jump * (fired - fired.detach())
    else:
        u = m_prev
    m = decay * u + scale * x.to(m_prev.dtype)
    return fire(m - threshold, surrogate).to(x.dtype), m


def lif_sequence(
    x: Tensor, m_prev: Tensor, decay: float = 0.1, threshold: float = 1.0, **options: Any
) -> tuple[Tensor, Tensor]:
    """The steps of a whole sequence [T, ...], one after the other; returns all spikes and the last membrane."""

    def step(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return lif_step(x, m, decay, threshold, **options)

    spikes, m = reference.steps(step, x, (m_prev,), sequence=True, online=False)
    return spikes, m


def lif_step_(x: Tensor, m: Tensor, decay: float = 0.1, threshold: float = 1.0, **options: Any) -> Tensor:
    """The same step online: the past is a constant, and `m` is overwritten with the new membrane."""
    spikes, new = lif_step(x, m.detach(), decay, threshold, **options)
    reference.write_over((m,), (new,))
    return spikes
