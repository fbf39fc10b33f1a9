"""The ALIF step in plain PyTorch: what every other backend is measured against."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .. import reference
from ..lif.reference import fire
from ..surrogate import Triangle

BETA = 0.184
RHO = math.exp(-1 / 100)


def alif_step(
    x: Tensor,
    m_prev: Tensor,
    adaptation_prev: Tensor,
    decay: float = 0.1,
    threshold: float = 1.0,
    *,
    beta: float = BETA,
    rho: float = RHO,
    detach_reset: bool = False,
    scale: float = 1.0,
    surrogate: Callable[[Tensor], Tensor] = Triangle(),  # noqa: B008 - immutable
    advance: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step; returns (spikes, m, adaptation). See README.md.

    Without `advance` the state is the plain form's: the membrane after reset, and the adaptation of this step already.
    """
    u, adaptation = m_prev, adaptation_prev
    if advance:
        level = threshold + beta * adaptation_prev
        fired = fire(m_prev - level, surrogate)
        taken = level * fired
        u = m_prev - (taken.detach() if detach_reset else taken)
        adaptation = rho * adaptation_prev + (1 - rho) * fired
    m = decay * u + scale * x.to(m_prev.dtype)
    spikes = fire(m - (threshold + beta * adaptation), surrogate)
    return spikes.to(x.dtype), m, adaptation


def alif_step_(
    x: Tensor, m: Tensor, adaptation: Tensor, decay: float = 0.1, threshold: float = 1.0, **options: Any
) -> Tensor:
    """The same step online: the past is a constant, and both states are overwritten with the new ones."""
    spikes, m_new, adaptation_new = alif_step(x, m.detach(), adaptation.detach(), decay, threshold, **options)
    reference.write_over((m, adaptation), (m_new, adaptation_new))
    return spikes
