"""Batch norm as operators: its statistics as a table, its output from the table, and the way back.

The table is all that is needed of a batch to normalise it (`operands`), so batch norm's output need not be written: the
neuron after it reads the input and the table (`steps.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from .. import dispatch
from ..layout import empty_like, like
from ..operators import Operator
from .operands import Shape


def shape_of(x: Tensor, steps: int, groups: int) -> Shape:
    """How a map of this many time steps is to be read."""
    channels = x.shape[1]
    run = 1 if x.stride(1) == 1 else x.shape[2:].numel()
    return Shape(steps, groups, channels, x.numel() // steps, run)


def kernels(backend: str, device: torch.device) -> ModuleType:
    """The kernels for tensors on a device."""
    return dispatch.kernels(__package__, backend, device)


def _statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    groups: int, shares: Sequence[float], eps: float, backend: str,
) -> Tensor:  # fmt: skip
    table = _empty_table(x, weight, bias, running_mean, running_var, groups, shares, eps, backend)
    shape, running = shape_of(x, groups, groups), (running_mean, running_var)
    kernels(backend, x.device).statistics(x, table, shape, weight, bias, *running, list(shares), eps)
    return table


def _empty_table(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    groups: int, shares: Sequence[float], eps: float, backend: str,
) -> Tensor:  # fmt: skip
    return torch.empty(groups, 4, x.shape[1], dtype=torch.float32, device=x.device)


def _normalise(x: Tensor, table: Tensor, backend: str) -> Tensor:
    y = _empty_map(x, table, backend)
    kernels(backend, x.device).normalise(x, table, y, shape_of(x, len(table), len(table)))
    return y


def _empty_map(x: Tensor, table: Tensor, backend: str) -> Tensor:
    return empty_like(x, x.dtype)


def _sums(grad: Tensor, x: Tensor, table: Tensor, backend: str) -> Tensor:
    sums = _empty_sums(grad, x, table, backend)
    kernels(backend, x.device).sums(like(grad, x), x, table, sums, shape_of(x, len(table), len(table)))
    return sums


def _empty_sums(grad: Tensor, x: Tensor, table: Tensor, backend: str) -> Tensor:
    return torch.empty(len(table), 2, x.shape[1], dtype=torch.float64, device=x.device)


def _gradients(
    grad: Tensor, x: Tensor, table: Tensor, sums: Tensor, constant: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    found = _empty_gradients(grad, x, table, sums, constant, backend)
    shape = shape_of(x, len(table), len(table))
    kernels(backend, x.device).gradients(like(grad, x), x, table, sums, *found, constant, shape)
    return found


def _empty_gradients(
    grad: Tensor, x: Tensor, table: Tensor, sums: Tensor, constant: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    return empty_like(x, x.dtype), *_empty_parameter_gradients(grad, x, table, sums, constant, backend)


def _gradients_over(
    grad: Tensor, x: Tensor, table: Tensor, sums: Tensor, constant: bool, backend: str
) -> tuple[Tensor, Tensor]:
    found = _empty_parameter_gradients(grad, x, table, sums, constant, backend)
    shape = shape_of(x, len(table), len(table))
    kernels(backend, x.device).gradients(grad, x, table, sums, grad, *found, constant, shape)
    return found


def _empty_parameter_gradients(
    grad: Tensor, x: Tensor, table: Tensor, sums: Tensor, constant: bool, backend: str
) -> tuple[Tensor, Tensor]:
    weight, bias = (torch.empty(x.shape[1], dtype=torch.float32, device=x.device) for _ in range(2))
    return weight, bias


norm_statistics = Operator("norm_statistics", _statistics, _empty_table, mutates=("running_mean", "running_var"))
"""The table of each of `groups` parts of a map; the running statistics take their `shares` of them, in order."""
normalise = Operator("norm_map", _normalise, _empty_map)
"""Batch norm's output, from its input and the table."""
norm_sums = Operator("norm_sums", _sums, _empty_sums)
"""Σ grad and Σ grad · (x - mean) of each group and channel, in float64."""
norm_gradients = Operator("norm_gradients", _gradients, _empty_gradients)
"""The gradients of batch norm's input, weight and bias, from its output's and the sums. Statistics may be constants."""
norm_gradients_ = Operator("norm_gradients_", _gradients_over, _empty_parameter_gradients, mutates=("grad",))
"""The same with the input's gradient over the output's, which must be in the input's memory order."""


def table_of(mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The table of statistics that are known, each [groups, channels]."""
    inverse = (variance.double() + eps).rsqrt()
    gain = (inverse if weight is None else inverse * weight).float().double()  # what it loses, the offset makes up for
    offset = -mean * gain if bias is None else bias - mean * gain
    return torch.stack([gain, offset, mean.double(), inverse], 1).float()
