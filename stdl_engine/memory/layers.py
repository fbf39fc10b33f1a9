"""Layers that take spikes and keep as little as they can for backward.

The convolution keeps one bit a spike. PyTorch's backward makes the gradients of input and weight in one call, with the
dense input alive throughout; here the weight's gradient comes first, and the unpacked spikes are freed before the
input's is made. The average pool keeps nothing: its backward reads only the shape of its input. Both call PyTorch's own
kernels on the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format

from .spikes import keep, restore


class _SpikeConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
        ctx.kept, ctx.shape, ctx.settings = keep(x), x.shape, (stride, padding)
        ctx.channels_last = torch.channels_last in (suggest_memory_format(x), suggest_memory_format(weight))
        ctx.save_for_backward(weight)
        return torch.ops.aten.convolution(x, weight, None, stride, padding, [1, 1], False, [0, 0], 1)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        stride, padding = ctx.settings
        if ctx.kept is None:
            raise RuntimeError(
                "lean memory frees a layer's input as it goes back: the same graph cannot be used twice."
            )
        kept, ctx.kept = ctx.kept, None

        def gradient(x: Tensor, weight: Tensor, wanted: list[bool]) -> tuple[Tensor | None, ...]:
            return torch.ops.aten.convolution_backward(
                grad, x, weight, None, stride, padding, [1, 1], False, [0, 0], 1, wanted
            )

        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = gradient(restore(kept), weight, [False, True, False])[1]
        if ctx.needs_input_grad[0]:
            # Only the shape of the input is read: one element stands in for all. The layout is then the weight's to
            # say.
            layout = torch.channels_last if ctx.channels_last else torch.contiguous_format
            stand_in = grad.new_empty(1).expand(ctx.shape)
            grad_x = gradient(stand_in, weight.contiguous(memory_format=layout), [True, False, False])[0]
        return grad_x, grad_weight, None, None


class _SpikePool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, *settings) -> Tensor:
        ctx.shape, ctx.settings = x.shape, settings
        return torch.ops.aten.avg_pool2d(x, *settings)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        stand_in = grad.new_empty(1).expand(ctx.shape)
        grad_x = torch.ops.aten.avg_pool2d_backward(grad, stand_in, *ctx.settings)
        return grad_x, *(None for _ in ctx.settings)


class SpikeConv2d(nn.Conv2d):
    """`nn.Conv2d` without bias; with memory "lean" its input is kept as bits where it has them."""

    memory_form: str | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.memory_form != "lean" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().forward(x)
        weight = self.weight
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
        return _SpikeConv.apply(x, weight, list(self.stride), list(self.padding))


class SpikeAvgPool2d(nn.AvgPool2d):
    """`nn.AvgPool2d` over squares; with memory "lean" its input is not kept at all."""

    memory_form: str | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.memory_form != "lean" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().forward(x)
        k, s, p = self.kernel_size, self.stride, self.padding
        return _SpikePool.apply(
            x, [k, k], [s, s], [p, p], self.ceil_mode, self.count_include_pad, self.divisor_override
        )
