"""Batch norm and the neuron after it in plain PyTorch: what the kernels are measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import batch_norm

from .. import reference


def normalised(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, groups: int = 1, eps: float = 1e-5
) -> Tensor:
    """Batch norm with the statistics of each of `groups` parts of the batch."""
    parts = (batch_norm(part, None, None, weight, bias, True, 0.0, eps) for part in x.chunk(groups))
    return torch.cat(tuple(parts))


def norm_steps(
    step: Callable[..., tuple[Tensor, ...]], x: Tensor, m_prev: Tensor, weight: Tensor | None = None,
    bias: Tensor | None = None, *, added: Tensor | None = None, groups: int = 1, eps: float = 1e-5,
    online: bool = False, **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Spikes and the last membrane of a neuron's `step`, for the time steps that are in the batch `x` one after the
    other, each with as many samples as `m_prev`."""
    y = normalised(x, weight, bias, groups=groups, eps=eps)
    y = y if added is None else y + added
    steps = y.unflatten(0, (-1, len(m_prev)))
    spikes, m = reference.steps(lambda x, m: step(x, m, **options), steps, (m_prev,), True, online)
    return spikes.flatten(0, 1), m
