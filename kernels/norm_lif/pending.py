"""Batch norm's output, not yet computed: its input and a table, for a neuron that normalises as it fires.

In the graph three nodes stand for it, as if batch norm, the sum with a shortcut and the neuron had run one after the
other: gradients live as long as they would then, and anyone who wants the map itself can have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from ..bits import add_bits_
from . import ops
from .sums import share, sums_of

Across = Callable[[Tensor], Tensor]


class Pending:
    """The output of batch norm, perhaps with something added.

    Attributes:
        x: batch norm's input.
        table: what it is normalised by.
        way: where its gradient goes, a tensor of its shape and of no size.
        added, added_bits: a map, or spikes as bits, to be added.
        backend: whose kernels compute it.
    """

    def __init__(
        self, x: Tensor, table: Tensor, way: Tensor, *, added: Tensor | None = None, added_bits: Tensor | None = None,
        backend: str = "auto",
    ) -> None:  # fmt: skip
        self.x, self.table, self.way, self.backend = x, table, way, backend
        self.added, self.added_bits = added, added_bits

    @classmethod
    def after(
        cls, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None, *, constant: bool,
        backend: str = "auto", across: Across | None = None,
    ) -> Self:  # fmt: skip
        """Of a map and its table. With `constant` statistics these do not depend on the map. Where the table is of more
        maps than this one, `across` turns the sums of this map's gradient into those of all, divided by how many times
        as large all are."""
        way = _Norm.apply(x, weight, bias, table, constant, across, backend)
        return cls(x.detach(), table, way, backend=backend)

    @property
    def shape(self) -> torch.Size:
        return self.x.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.x.dtype

    def plus(self, added: Tensor) -> Pending:
        """With a map added."""
        return self._with(_Added.apply(self.way, added), added=added.detach())

    def plus_spikes(self, way: Tensor, bits: Tensor) -> Pending:
        """With spikes added, of which there are the bits and where their gradient goes."""
        return self._with(_Added.apply(self.way, way), added_bits=bits)

    def _with(self, way: Tensor, **added: Tensor) -> Pending:
        return Pending(self.x, self.table, way, backend=self.backend, **added)

    def dense(self) -> Tensor:
        """The map itself."""
        return _Written.apply(self.way, self)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, table: Tensor, constant: bool,
        across: Across | None, backend: str,
    ) -> Tensor:  # fmt: skip
        ctx.constant, ctx.across, ctx.backend = constant, across, backend
        ctx.save_for_backward(x, table)
        return _no_size(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, table = ctx.saved_tensors
        found = sums_of(grad, table)
        sums = ops.norm_sums(grad, x, table, ctx.backend) if found is None else found.sums
        sums = sums if ctx.across is None else ctx.across(sums)
        given = grad, x, table, sums, ctx.constant, ctx.backend
        if found is not None and not found.shared:  # the gradient was made for this node alone
            gradients = grad, *ops.norm_gradients_(*given)
        else:
            gradients = ops.norm_gradients(*given)
        wanted = zip(gradients, ctx.needs_input_grad[:3], strict=True)
        return *(g if is_wanted else None for g, is_wanted in wanted), None, None, None, None


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, way: Tensor, other: Tensor) -> Tensor:
        return _no_size(way)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return share(grad) if ctx.needs_input_grad[1] else grad, grad


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, way: Tensor, pending: Pending) -> Tensor:
        return written(pending.x, pending.table, pending.added, pending.added_bits, pending.backend)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def written(x: Tensor, table: Tensor, added: Tensor | None, added_bits: Tensor | None, backend: str) -> Tensor:
    """The map: batch norm's output, and what is added to it."""
    y = ops.normalise(x, table, backend)
    if added is not None:
        y.add_(added)
    if added_bits is not None:
        add_bits_(y, added_bits)
    return y


def _no_size(x: Tensor) -> Tensor:
    return x.new_zeros(()).expand(x.shape)


MOST = {"cuda": 1024}
"""The most channels, by device; elsewhere 2048."""


def takes(x: Tensor) -> bool:
    """Whether the kernels can normalise such a map: not in float64, channels_last or contiguous, and a byte of spike
    bits is of one pixel or of one sample (on a GPU, of one run of pixels)."""
    if x.ndim != 4 or x.dtype not in (torch.float32, torch.float16, torch.bfloat16) or not x.numel():
        return False
    channels, pixels = x.shape[1], x.shape[2:].numel()
    if channels > MOST.get(x.device.type, 2048) or pixels == 1:
        return False
    if x.stride(1) == 1:
        return x.is_contiguous(memory_format=torch.channels_last) and not channels % 8
    run = pixels if x.device.type == "cuda" else channels * pixels
    return x.is_contiguous() and x.stride(1) == pixels and not run % 8
