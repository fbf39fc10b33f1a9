"""The PLIF step in plain PyTorch: what every other backend is measured against."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..lif import reference as lif


def plif_step(
    x: Tensor, m_prev: Tensor, w: Tensor, threshold: float = 1.0, *, scale: float = 1.0, scale_by_decay: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The LIF step with decay = sigmoid(w), and the input scaled by 1 - decay too if asked; returns (spikes, m)."""
    decay = torch.sigmoid(w)
    factor = scale * (1 - decay) if scale_by_decay else scale
    return lif.lif_step(x, m_prev, decay, threshold, scale=factor, **options)
